"""`proxy-command`: tunnels ssh through HTTPS. Light, because ssh starts it for every connection."""

import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from gpudev import paths
from gpudev.cli import output, stdio_pipe
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.sdk import api_address, user_files
from gpudev.sdk.errors import ClientError
from gpudev.version import __version__
from gpudev.wire import websocket

# The fast path for the normal case: a stored key, a token, and a WebSocket over one connection, with few modules
# loaded, because the user waits for it at every connection.
#
# It handles no special case (no key, an expired key, a pinned certificate, an HTTP proxy, an error response): it
# returns None, and the full client starts over, with renewal and proper error messages.


_PATIENCE_SECONDS = 5.0
_LONGEST_HEAD = 64 * 1024
_LONGEST_BODY = 64 * 1024


class FastConnection(NamedTuple):
    """An open WebSocket and the bytes already received; `received` None: a direct connection to the dev server."""

    socket: socket.socket
    received: bytes | None


class _NeedsFullClient(Exception):
    """A special case that the full client handles."""


class _FastResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    rest: bytes
    """Bytes received after the head."""


def open_fast_connection(
    job_id: str, api_url: str | None, env: Mapping[str, str] | None = None, *, auto: bool = False
) -> FastConnection | None:
    """Connect to the dev server's ssh server; None: use the full client. `auto`: directly, if it is reachable."""
    opened: list[socket.socket] = []
    try:
        return _open_fast(job_id, api_url, os.environ if env is None else env, auto, opened)
    except (_NeedsFullClient, ClientError, OSError, ValueError):
        for line in opened:
            line.close()
        return None


def _open_fast(
    job_id: str, api_url: str | None, env: Mapping[str, str], auto: bool, opened: list[socket.socket]
) -> FastConnection:
    """Appends every connection to `opened`, so that the caller can close it."""
    url, key = _find_url_and_key(api_url, env)
    line = _connect(url, env)
    opened.append(line)
    if auto:
        direct = _connect_directly(_request_json(line, url, "GET", f"/v1/jobs/{job_id}", key))
        if direct is not None:
            line.close()
            return FastConnection(direct, None)
    token = _request_token(line, url, job_id, key)
    if token["url"] is not None:
        line.close()
        url = urlsplit(token["url"])
        line = _connect(url, env, pinned=False)
        opened.append(line)
    return FastConnection(line, _upgrade(line, url, token["reservation_id"], token["token"]))


def _find_url_and_key(api_url: str | None, env: Mapping[str, str]) -> tuple[SplitResult, str]:
    embedded_url = api_address.find_embedded_url(paths.system_file(env))
    url = api_address.choose_address(
        api_url, env, user_files.load_preferences(paths.config_file(env)), embedded_url
    ).url
    key = env.get(user_files.KEY_VARIABLE)
    if not key:
        stored = user_files.find_credential(paths.credentials_file(env), url)
        key = stored.api_key if stored is not None else ""
    return urlsplit(url), user_files.check_key(key, "the key")


def _connect(url: SplitResult, env: Mapping[str, str], *, pinned: bool = True) -> socket.socket:
    host, secure = url.hostname or "", url.scheme == "https"
    http_proxy = env.get(f"{url.scheme}_proxy") or env.get(f"{url.scheme.upper()}_PROXY")
    if http_proxy and not api_address.is_loopback(host):
        raise _NeedsFullClient
    if secure and pinned:
        from gpudev.sdk.http.certificate_pins import find_pin

        if find_pin(env, url.geturl()) is not None:
            raise _NeedsFullClient
    # As bytes: a str would load the IDNA codec, which is slow.
    where = (host.encode("ascii"), url.port or (443 if secure else 80))
    line = socket.create_connection(where, timeout=_PATIENCE_SECONDS)  # type: ignore[arg-type]
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not secure:
        return line
    import ssl

    return ssl.create_default_context().wrap_socket(line, server_hostname=host)


def _connect_directly(job: Mapping[str, object]) -> socket.socket | None:
    host, port = job.get("node_ip"), job.get("node_port")
    if not isinstance(host, str) or not isinstance(port, int):
        raise _NeedsFullClient  # not ready, or ended: the full client reports it
    try:
        return api_address.open_if_ssh(host, port)
    except (OSError, OverflowError):
        return None


def _request_token(line: socket.socket, url: SplitResult, job_id: str, key: str) -> dict[str, str | None]:
    reply = _request_json(line, url, "POST", f"/v1/jobs/{job_id}/proxy-token", key)
    if not all(isinstance(reply.get(name), str) for name in ("token", "reservation_id")):
        raise _NeedsFullClient
    return {"url": None, **reply}


def _request_json(line: socket.socket, url: SplitResult, method: str, path: str, key: str) -> dict[str, Any]:
    """One request on a connection that stays open for the next one."""
    line.sendall(_request_head(method, url, path, key, {"Content-Length": "0", "Accept": "application/json"}))
    response = _read_response(line)
    size = int(response.headers.get("content-length", _LONGEST_BODY + 1))
    if response.status != 200 or not 0 <= size <= _LONGEST_BODY or response.headers.get("connection") == "close":
        raise _NeedsFullClient
    body = response.rest
    while len(body) < size:
        body += _receive_some(line)
    reply = json.loads(body[:size])
    if not isinstance(reply, dict):
        raise _NeedsFullClient
    return reply


def _upgrade(line: socket.socket, url: SplitResult, reservation_id: str | None, token: str | None) -> bytes:
    """Bytes received after the upgrade response."""
    key = websocket.new_key()
    upgrade = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
    line.sendall(
        _request_head("GET", url, f"/v1/jobs/{reservation_id}/ssh", token or "", {"Connection": "Upgrade", **upgrade})
    )
    response = _read_response(line)
    if response.status != 101 or response.headers.get("sec-websocket-accept") != websocket.accept_value(key):
        raise _NeedsFullClient
    return response.rest


def _request_head(method: str, url: SplitResult, path: str, bearer: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {url.path}{path} HTTP/1.1", f"Host: {url.netloc}", f"User-Agent: gpu-dev/{__version__}"]
    lines += [f"Authorization: Bearer {bearer}", *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in text or "\n" in text for text in lines):
        raise _NeedsFullClient
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _read_response(line: socket.socket) -> _FastResponse:
    received = b""
    while b"\r\n\r\n" not in received:
        if len(received) > _LONGEST_HEAD:
            raise _NeedsFullClient
        received += _receive_some(line)
    head, _, rest = received.partition(b"\r\n\r\n")
    first, *others = head.decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ")
    if version != "HTTP/1.1":
        raise _NeedsFullClient
    named = (other.partition(":") for other in others)
    return _FastResponse(int(status), {name.strip().lower(): value.strip() for name, _, value in named}, rest)


def _receive_some(line: socket.socket) -> bytes:
    data = line.recv(65536)
    if not data:
        raise _NeedsFullClient
    return data


_RESERVATION_ENDED, _ACCESS_ENDED = 4001, 4003
_NORMAL_CLOSE_CODES = (1000, 1005)
_EXIT_CODES = {_RESERVATION_ENDED: ExitCode.RESERVATION_ENDED, _ACCESS_ENDED: ExitCode.AUTH}


def run_fast_path(arguments: Sequence[str]) -> int | None:
    """The exit code; None: the arguments need the full parser."""
    found = re.fullmatch(
        r"(?P<auto>--auto\0)?(?:--api-url\0(?P<url>[^\0]+)\0)?(?P<id>[0-9a-f-]{36})", "\0".join(arguments)
    )
    if found is None:
        return None
    output.configure_streams()
    try:
        run_tunnel(found["id"], auto=found["auto"] is not None, api_url=found["url"])
    except BaseException as error:  # noqa: BLE001 - the outermost frame: everything becomes an exit code
        from gpudev.cli.app import report_error

        return report_error(error, json_output=False)
    return ExitCode.OK


def run_tunnel(job_id: str, *, auto: bool, api_url: str | None) -> None:
    """Standard input and output to the dev server's ssh server, until either has ended."""
    line, first = open_fast_connection(job_id, api_url, auto=auto) or _open_with_full_client(job_id, auto, api_url)
    if first is None:
        stdio_pipe.StdioPipe(line, stdio_pipe.PlainFraming()).run()
        return
    closed = stdio_pipe.StdioPipe(line, stdio_pipe.WebSocketFraming()).run(first)
    stdio_pipe.close_websocket(line)
    if closed is not None and closed.code not in _NORMAL_CLOSE_CODES:
        code = _EXIT_CODES.get(closed.code, ExitCode.UNREACHABLE)
        raise CliError(code, f"the connection was closed: {closed.reason or f'code {closed.code}'}")


def _open_with_full_client(job_id: str, auto: bool, api_url: str | None) -> "tuple[socket.socket, bytes | None]":
    """A WebSocket and the bytes already received; None instead of bytes: a direct connection to the dev server."""
    from gpudev.cli.command_session import CommandSession

    session = CommandSession(api_url)
    if auto:
        from gpudev.sdk.http.endpoints import get_job
        from gpudev.sdk.remote import ssh_route

        direct = ssh_route.connect_directly(session.api.fetch(get_job(job_id)).value)
        if direct is not None:
            return direct, None
    return session.api.open_tunnel(job_id)
