"""HTTP on the standard library: one request, one response or one stream of lines.

`http.client` loads in a third of the time of a full client library, which matters for every command.
"""

import http.client
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

from gpudev.domain.trace_context import new_trace_id, trace_headers
from gpudev.sdk.api_address import is_loopback
from gpudev.sdk.errors import Unreachable, UsageError
from gpudev.version import __version__

CONNECT_SECONDS = 10.0
RESPONSE_SECONDS = 60.0
SILENCE_SECONDS = 60.0
"""A stream without data for this long is dead: the server sends keep-alives."""
_LONGEST_LINE = 2**20


class HttpRequest(NamedTuple):
    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    repeatable: bool = False
    """Whether a repeat is safe."""


class HttpResponse(NamedTuple):
    status: int
    body: bytes
    content_type: str
    location: str | None = None
    retry_after: float | None = None


class LineStream:
    """The lines of a streaming response."""

    def __init__(self, response: http.client.HTTPResponse, line: socket.socket, silence: float) -> None:
        self._response = response
        self._socket = line
        self._silence = silence

    def read_line(self, within: float | None = None) -> bytes | None:
        """The next line; None: the server ended the stream. Raises Unreachable if it breaks, or after `within` seconds
        without data, at most `silence`."""
        try:
            self._socket.settimeout(self._silence if within is None else max(0.01, min(within, self._silence)))
            line = self._response.readline(_LONGEST_LINE)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(f"the stream broke ({_describe_error(error)})", sent=True) from error
        return line or None

    def close(self) -> None:
        self._response.close()
        self._socket.close()

    def abort(self) -> None:
        """From another thread: the reader gets Unreachable."""
        abort_connection(self._socket)


def abort_connection(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


class WebSocketConnection(NamedTuple):
    """An open WebSocket, and the bytes already received."""

    socket: socket.socket
    received: bytes


class HttpTransport:
    def __init__(
        self,
        url: str,
        *,
        when_unreachable: str = "",
        pin: str | None = None,
        name: str = "the API",
        trace_id: str | None = None,
    ) -> None:
        """`pin`: fingerprint of the server's key, checked instead of the certificate chain. `trace_id`: trace of the
        requests; None: a new one."""
        self._trace_id = trace_id or new_trace_id()
        self._pin = pin
        self._name = name
        self._url = url
        self._when_unreachable = when_unreachable
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._prefix = parts.path
        self._proxy = _find_http_proxy(parts.scheme, self._host, os.environ)

    def send(self, request: HttpRequest, connected: Callable[[socket.socket], None] | None = None) -> HttpResponse:
        """Send once. Raises Unreachable. Calls `connected` with the socket, so that the caller can abort."""
        connection = self._connect()
        if connected is not None:
            connected(connection.sock)
        try:
            return _read_response(self._send(connection, request))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error, sent=True) from error
        finally:
            connection.close()

    def open_stream(self, request: HttpRequest, silence: float = SILENCE_SECONDS) -> LineStream | HttpResponse:
        """A stream, or the response if the API sends none. Raises Unreachable."""
        connection = self._connect()
        # http.client drops the socket when it expects no second request.
        line = connection.sock
        try:
            response = self._send(connection, request)
            if response.status == 200 and response.headers.get_content_type() == "text/event-stream":
                return LineStream(response, line, silence)
            answer = _read_response(response)
            connection.close()
            return answer
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise self._unreachable(error, sent=True) from error

    def open_websocket(self, request: HttpRequest) -> WebSocketConnection | HttpResponse:
        """An open WebSocket, or the response if the server rejects the upgrade. Raises Unreachable."""
        from gpudev.wire import websocket

        key = websocket.new_key()
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers = {**request.headers, **upgrade, "Sec-WebSocket-Key": key}
        connection = self._connect(through_tunnel=True)
        line = connection.sock
        try:
            response = self._send(connection, request._replace(headers=headers), through_tunnel=True)
            if response.status != 101:
                answer = _read_response(response)
                connection.close()
                return answer
            if response.headers.get("Sec-WebSocket-Accept") != websocket.accept_value(key):
                raise http.client.HTTPException("invalid Sec-WebSocket-Accept")
            return WebSocketConnection(line, _buffered_bytes(line, response))
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise self._unreachable(error, sent=True) from error

    def _connect(self, *, through_tunnel: bool = False) -> http.client.HTTPConnection:
        connection = self._new_connection(through_tunnel or self._secure)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error, sent=False) from error
        if self._pin is not None:
            self._check_pin(connection, self._pin)
        connection.sock.settimeout(RESPONSE_SECONDS)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._pin is None:
            return ssl.create_default_context()
        from gpudev.sdk.http.certificate_pins import pinning_context

        return pinning_context()

    def _check_pin(self, connection: http.client.HTTPConnection, pin: str) -> None:
        """Before anything is sent: the server must have the key of the invitation."""
        from gpudev.sdk.http.certificate_pins import matches_pin

        if isinstance(connection.sock, ssl.SSLSocket) and matches_pin(connection.sock.getpeercert(True), pin):
            return
        connection.close()
        message = f"{self._url} does not present the key of your invitation: it may be another server"
        step = "Ask its operator; if the key was changed on purpose, a new invitation has the new one"
        raise Unreachable(message, sent=False, next_step=step, final=True)

    def _new_connection(self, through_tunnel: bool) -> http.client.HTTPConnection:
        """`through_tunnel`: an HTTP proxy tunnels bytes (CONNECT). Otherwise it parses requests and drops upgrades."""
        host, port = (self._proxy.host, self._proxy.port) if self._proxy else (self._host, self._port)
        connection = (
            http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=self._context())
            if self._secure
            else http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        )
        if self._proxy and through_tunnel:
            connection.set_tunnel(self._host, self._port, self._proxy.headers)
        return connection

    def _send(
        self, connection: http.client.HTTPConnection, request: HttpRequest, *, through_tunnel: bool = False
    ) -> http.client.HTTPResponse:
        headers = {
            "Accept": "application/json",
            "User-Agent": f"gpu-dev/{__version__}",
            "Connection": "close",
            **trace_headers(self._trace_id),
            **request.headers,
        }
        if request.body is not None:
            headers.setdefault("Content-Type", "application/json")
        target = self._prefix + request.path
        if self._proxy and not (self._secure or through_tunnel):
            headers |= {"Host": _host_header(self._host, self._port), **self._proxy.headers}
            target = f"http://{_host_header(self._host, self._port)}{target}"
        connection.request(request.method, target, request.body, headers)
        return connection.getresponse()

    def _unreachable(self, error: Exception, *, sent: bool) -> Unreachable:
        if isinstance(error, ssl.SSLCertVerificationError):
            message = f"the certificate of {self._url} is not trusted ({error.verify_message})"
            step = "Ask its operator, or add its authority to this machine (SSL_CERT_FILE can name your own file)"
            return Unreachable(message, sent=False, next_step=step, final=True)
        through = f" through the proxy {self._proxy.host}:{self._proxy.port}" if self._proxy else ""
        message = f"{self._name} at {self._url} does not respond{through} ({_describe_error(error)})"
        return Unreachable(message, sent=sent, next_step=self._when_unreachable)


class _HttpProxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]


def _find_http_proxy(scheme: str, host: str, env: Mapping[str, str]) -> _HttpProxy | None:
    """The environment's proxy for this host; None for this machine."""
    url = env.get(f"{scheme}_proxy") or env.get(f"{scheme.upper()}_PROXY")
    if not url or is_loopback(host):
        return None
    # Imported late: slow, and needed only for NO_PROXY.
    from urllib.request import proxy_bypass

    if proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if not parts.hostname:
        raise UsageError(f"invalid {scheme.upper()}_PROXY {url[:200]!r}")
    return _HttpProxy(parts.hostname, parts.port or 3128, _proxy_login(parts.username, parts.password))


def _proxy_login(username: str | None, password: str | None) -> dict[str, str]:
    if username is None:
        return {}
    from base64 import b64encode
    from urllib.parse import unquote

    login = f"{unquote(username)}:{unquote(password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}


def _host_header(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == 80 else f"{shown}:{port}"


def _read_response(response: http.client.HTTPResponse) -> HttpResponse:
    # No size limit: only then does http.client detect a truncated response.
    headers = response.headers
    return HttpResponse(
        response.status, response.read(), headers.get_content_type(), headers.get("Location"), _retry_after(response)
    )


def _buffered_bytes(line: socket.socket, response: http.client.HTTPResponse) -> bytes:
    """Bytes after the response in the library's buffer; from here on the socket is read directly."""
    line.setblocking(False)
    try:
        return bytes(response.fp.peek())
    except (BlockingIOError, ssl.SSLWantReadError):
        return b""


def _retry_after(response: http.client.HTTPResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _describe_error(error: Exception) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case http.client.RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
            return "the connection broke"
        case http.client.IncompleteRead():
            return "truncated response"
        case TimeoutError():
            return "timed out"
        case OSError():
            return error.strerror or str(error) or type(error).__name__
        case _:
            return f"{type(error).__name__}: {error}"
