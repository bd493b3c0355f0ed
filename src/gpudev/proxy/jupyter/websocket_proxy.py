"""Jupyter's WebSockets: forwards bytes; only the handshake is read and rewritten.

Idle browsers are pinged. Jupyter's own pings are too rare for some proxies, and a notebook loses its kernel when its
connection is closed as idle.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol, cast

import h11
import structlog
from starlette.responses import Response

from gpudev.adapters.ssh_tunnels import SshReader, SshWriter
from gpudev.domain.errors import GpuDevError, NotFound, Unavailable
from gpudev.domain.sessions.grants import Grant
from gpudev.proxy.jupyter import headers as header_rules
from gpudev.proxy.jupyter.guard import TooManyTinyPieces
from gpudev.proxy.jupyter.headers import Headers, find_jupyter_path
from gpudev.proxy.jupyter.http_proxy import JupyterAccess, JupyterConnection, jupyter_error_response
from gpudev.proxy.loop_share import TINY_BYTES, WorkSlice
from gpudev.settings import ProxySettings
from gpudev.wire.websocket import PING_FRAME, FrameBoundaryTracker
from gpudev.workflows.sessions.jupyter_access import AdmittedBrowser
from gpudev.workflows.sessions.ssh_tokens import GRANT_CHECK_EVERY, SshTokens

log = structlog.get_logger(__name__)
_HIGH_WATER, _LOW_WATER = 256 * 1024, 64 * 1024
_CHUNK_BYTES = 64 * 1024
_FRAMES_AT_ONCE = 32
_UPGRADE = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade")]


class JupyterWebSockets:
    """All Jupyter WebSockets of this process, with their authorization checks and pings."""

    def __init__(self, jupyter: JupyterAccess, ssh_tokens: SshTokens, settings: ProxySettings) -> None:
        self.access = jupyter
        self._ssh_tokens = ssh_tokens
        self._settings = settings
        self._open: dict[JupyterWebSocket, Grant] = {}
        self._check_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._check_task = asyncio.create_task(self._check_loop(), name="jupyter sockets")

    async def close(self) -> None:
        if self._check_task is not None:
            self._check_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._check_task
        for socket in list(self._open):
            socket.abort()

    def make_socket(self, peer: str | None = None) -> "JupyterWebSocket":
        """`peer`: the browser's address, if the connection does not show it."""
        return JupyterWebSocket(self, peer)

    def add(self, socket: "JupyterWebSocket", grant: Grant) -> None:
        if len(self._open) >= self._settings.most:
            raise Unavailable("the proxy has reached its maximum number of sessions; try again later")
        self._open[socket] = grant

    def remove(self, socket: "JupyterWebSocket") -> None:
        self._open.pop(socket, None)

    async def _check_loop(self) -> None:
        """Never ends: any error is logged and the loop continues. While the database is down, no WebSocket is ended."""
        while True:
            await asyncio.sleep(GRANT_CHECK_EVERY.total_seconds())
            try:
                with suppress(Unavailable):
                    await self.end_expired()
                self.ping_idle()
            except Exception:
                log.exception("jupyter.check_failed")

    async def end_expired(self) -> None:
        grants = list(set(self._open.values()))
        if not grants:
            return
        endings = await self._ssh_tokens.find_ended(grants)
        for socket, grant in list(self._open.items()):
            if grant in endings:
                socket.abort()

    def ping_idle(self) -> None:
        """Keeps idle connections open through proxies."""
        silent_since = asyncio.get_running_loop().time() - self._settings.ping_every.total_seconds()
        for socket in list(self._open):
            socket.ping(silent_since)


class JupyterWebSocket(asyncio.Protocol):
    """The browser's side of one WebSocket."""

    def __init__(self, sockets: JupyterWebSockets, peer: str | None = None) -> None:
        self._sockets = sockets
        self._given_peer = peer
        self._client: asyncio.Transport
        self._buffered = b""
        self._proxy_task: asyncio.Task[None] | None = None
        self._writer: SshWriter | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._draining: asyncio.Task[None] | None = None
        self._sent_frames = FrameBoundaryTracker(TINY_BYTES)
        self._is_tracking = False
        self._sent_at: float | None = None
        """When data was last sent to the browser; None: before the handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)
        self._client.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)

    def data_received(self, data: bytes) -> None:
        if self._proxy_task is None:
            head, _, self._buffered = data.partition(b"\r\n\r\n")
            self._client.pause_reading()
            self._proxy_task = asyncio.get_running_loop().create_task(self._run_proxy(head))
        elif self._writer is None:
            self._buffered += data  # not every event loop respects pause_reading this early
        else:
            self._writer.write(data)
            if self._draining is None:
                self._client.pause_reading()
                self._draining = asyncio.get_running_loop().create_task(self._drain(self._writer))

    async def _drain(self, writer: SshWriter) -> None:
        with suppress(OSError):
            await writer.drain()
        self._draining = None
        if not self._client.is_closing():
            self._client.resume_reading()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        for task in (self._proxy_task, self._draining):
            if task is not None:
                task.cancel()
        self._sockets.remove(self)

    def abort(self) -> None:
        self._client.abort()

    def ping(self, silent_since: float) -> None:
        """Pings if nothing was sent since then. The pong goes to Jupyter, which ignores it."""
        if self._is_tracking or not self._sent_frames.is_at_boundary:
            return
        if self._sent_at is not None and self._sent_at <= silent_since:
            self._send_to_browser(PING_FRAME)

    async def _run_proxy(self, head: bytes) -> None:
        method, target, headers = _parse_head(head)
        peer = self._client.get_extra_info("peername")
        guard = self._sockets.access.guard
        client = guard.identify_client(self._given_peer or (peer[0] if isinstance(peer, tuple) else None), headers)
        jupyter_path = header_rules.find_jupyter_path(target.partition(b"?")[0].decode("latin-1"))
        try:
            if jupyter_path is None:
                raise NotFound("no WebSocket at this path")
            session = await self._sockets.access.admit(jupyter_path, method, headers, client, is_websocket=True)
            self._sockets.add(self, session.grant)
            async with self._sockets.access.connect(session) as connection:
                connection.writer.write(_upgrade_request(method, target, headers, session) + self._buffered)
                self._writer, self._buffered = connection.writer, b""
                if not self._client.is_closing():
                    self._client.resume_reading()
                try:
                    await self._forward_to_browser(connection, jupyter_path.path)
                except TooManyTinyPieces:
                    guard.record_cut(client, session)
                    self._client.abort()
                    return
        except GpuDevError as error:
            log.info("jupyter.denied", code=error.code, error=error.message, request_id=client.request_id)
            guard.record_denied(client, error, method, "" if jupyter_path is None else jupyter_path.reservation_id)
            self._client.write(_serialize_response(jupyter_error_response(error, client.request_id, as_page=False)))
        except OSError as error:
            log.info("jupyter.connection_lost", error=str(error), request_id=client.request_id)
        except Exception:
            log.exception("jupyter.unexpected_error", request_id=client.request_id)
        self._client.close()

    async def _forward_to_browser(self, connection: JupyterConnection, path: str) -> None:
        headers, data = await _read_upgrade_response(connection.reader, path)
        self._client.write(_format_head(b"HTTP/1.1 101 Switching Protocols", [*_UPGRADE, *headers]))
        work = WorkSlice()
        while True:
            await self._track_frames(data, connection, work)
            self._send_to_browser(data)
            await self._may_write.wait()
            if not (data := await work.exclude(connection.reader.read(_CHUNK_BYTES))):
                return

    async def _track_frames(self, data: bytes, connection: JupyterConnection, work: WorkSlice) -> None:
        """Gives the event loop away between slices. Nothing is sent meanwhile, because the boundaries of frames that
        are not sent yet say nothing about where a ping may be inserted."""
        rest = memoryview(data)
        self._is_tracking = True
        while rest:
            rest = rest[self._sent_frames.advance(rest, _FRAMES_AT_ONCE) :]
            await connection.share.yield_loop(work, is_wasteful=self._sent_frames.tiny_frames > 0)
        self._is_tracking = False
        if self._sent_frames.tiny_frames:
            connection.check_tiny_pieces(self._sent_frames.tiny_frames)
            self._sent_frames.tiny_frames = 0

    def _send_to_browser(self, data: bytes) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        self._client.write(data)


def _upgrade_request(method: str, target: bytes, headers: Headers, session: AdmittedBrowser) -> bytes:
    """The upgrade request as forwarded to Jupyter."""
    forwarded = [*_UPGRADE, *header_rules.request_headers(headers, session.secrets.token)]
    return _format_head(b"%s %s HTTP/1.1" % (method.encode("latin-1"), target), forwarded)


async def _read_upgrade_response(reader: SshReader, path: str) -> tuple[Headers, bytes]:
    """The response headers for the browser, and the data after them."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[(b"host", b"jupyter"), *_UPGRADE]))
    http.send(h11.EndOfMessage())
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await reader.read(_CHUNK_BYTES))
    except h11.ProtocolError as error:
        raise Unavailable(f"Jupyter's response is not valid HTTP: {error}") from error
    if isinstance(event, h11.ConnectionClosed):
        raise Unavailable("Jupyter closed the connection without a response")
    if not isinstance(event, h11.InformationalResponse) or event.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        # Jupyter's own error response is not forwarded.
        raise NotFound("Jupyter has no WebSocket at this path")
    returned = header_rules.response_headers([(bytes(name), bytes(value)) for name, value in event.headers], path)
    return returned, http.trailing_data[0]


def _format_head(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join([first, *(b"%s: %s" % pair for pair in headers), b"", b""])


def _parse_head(head: bytes) -> tuple[str, bytes, Headers]:
    """As the web server serializes it: one header per line, names in lower case."""
    first, *lines = head.split(b"\r\n")
    method, target, _ = first.split(b" ", 2)
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return method.decode("latin-1"), target, headers


def _serialize_response(response: Response) -> bytes:
    phrase = HTTPStatus(response.status_code).phrase
    lines = [f"HTTP/1.1 {response.status_code} {phrase}".encode(), b"connection: close"]
    lines += [b"%s: %s" % pair for pair in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


# Routes a WebSocket upgrade to ssh or Jupyter.


class SwitchTarget(Protocol):
    """An asyncio protocol with `data_received`, even if it is a buffered one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None, /) -> None: ...


class WebSocketSwitch(asyncio.Protocol):
    """Chooses the target by the request line, then makes it the transport's protocol."""

    def __init__(self, ssh: Callable[[], SwitchTarget], jupyter: Callable[[], SwitchTarget]) -> None:
        self._ssh = ssh
        self._jupyter = jupyter
        self._transport: asyncio.BaseTransport
        self._chosen: SwitchTarget | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._chosen is None:
            self._chosen = self._choose(data)
            self._chosen.connection_made(self._transport)
            # Later: the web server sets this object as the transport's protocol after this call.
            asyncio.get_running_loop().call_soon(self._hand_over, self._chosen)
        self._chosen.data_received(data)

    def _choose(self, head: bytes) -> SwitchTarget:
        """The web server passes the whole request head at once."""
        words = head.partition(b"\r\n")[0].split(b" ")
        path = words[1].partition(b"?")[0].decode("latin-1") if len(words) > 1 else ""
        return self._ssh() if find_jupyter_path(path) is None else self._jupyter()

    def _hand_over(self, chosen: SwitchTarget) -> None:
        if not self._transport.is_closing():
            self._transport.set_protocol(cast(asyncio.BaseProtocol, chosen))

    def eof_received(self) -> bool | None:
        return self._chosen.eof_received() if self._chosen is not None else None

    def pause_writing(self) -> None:
        if self._chosen is not None:
            self._chosen.pause_writing()

    def resume_writing(self) -> None:
        if self._chosen is not None:
            self._chosen.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._chosen is not None:
            self._chosen.connection_lost(error)
