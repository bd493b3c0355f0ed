"""Jupyter's WebSockets: bytes between a browser and Jupyter, who speak the protocol with each other. Only the request
that opens one and the answer to it are read and rewritten. Neither side is read while the other cannot take more.

One word is ours: a browser that has heard nothing for a while is pinged. Jupyter does so too, but not often enough for
everything on the way, and a connection that is taken for dead is a notebook that has lost its kernel.
"""

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import cast

import h11
import structlog
from starlette.responses import Response

from gpudev.adapters.ssh_tunnels import Reader, Writer
from gpudev.domain.errors import GpuDevError, NotFound, Unavailable
from gpudev.domain.sessions.grants import Grant
from gpudev.proxy.boundaries import PING, Boundaries
from gpudev.proxy.jupyter import headers as door
from gpudev.proxy.jupyter.headers import Headers
from gpudev.proxy.jupyter.http_proxy import JupyterDoor, refused
from gpudev.settings import ProxySettings
from gpudev.workflows.sessions.jupyter_access import Guest
from gpudev.workflows.sessions.ssh_tokens import Proxying

log = structlog.get_logger(__name__)
_HIGH_WATER, _LOW_WATER = 256 * 1024, 64 * 1024
_PIECE = 64 * 1024
_UPGRADE = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade")]


class JupyterSockets:
    """All of this process, and whether each may go on."""

    def __init__(self, jupyter: JupyterDoor, proxying: Proxying, settings: ProxySettings) -> None:
        self.door = jupyter
        self._proxying = proxying
        self._settings = settings
        self._open: dict[JupyterSocket, Grant] = {}
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name="jupyter sockets")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        for socket in list(self._open):
            socket.abort()

    def socket(self) -> "JupyterSocket":
        return JupyterSocket(self)

    def enter(self, socket: "JupyterSocket", grant: Grant) -> None:
        if len(self._open) >= self._settings.most:
            raise Unavailable("the proxy has as many sessions as it can take; try again later")
        self._open[socket] = grant

    def left(self, socket: "JupyterSocket") -> None:
        self._open.pop(socket, None)

    async def _keep(self) -> None:
        """The one loop that goes on whatever happens. While the database is away nothing is known, and nothing
        ends."""
        while True:
            await asyncio.sleep(self._settings.look_every.total_seconds())
            try:
                with suppress(Unavailable):
                    await self.look()
                self.ping()
            except Exception:
                log.exception("jupyter.keeper_failed")

    async def look(self) -> None:
        grants = list(set(self._open.values()))
        if not grants:
            return
        endings = await self._proxying.endings(grants)
        for socket, grant in list(self._open.items()):
            if grant in endings:
                socket.abort()

    def ping(self) -> None:
        """Keeps every connection busy enough for what is on its way."""
        silent_since = asyncio.get_running_loop().time() - self._settings.ping_every.total_seconds()
        for socket in list(self._open):
            socket.ping(silent_since)


class JupyterSocket(asyncio.Protocol):
    """The browser's side of one."""

    def __init__(self, sockets: JupyterSockets) -> None:
        self._sockets = sockets
        self._client: asyncio.Transport
        self._early = b""
        self._carrying: asyncio.Task[None] | None = None
        self._writer: Writer | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._draining: asyncio.Task[None] | None = None
        self._told = Boundaries()
        self._told_at: float | None = None
        """When the browser last heard something in its WebSocket; None: it has none yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)
        self._client.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)

    def data_received(self, data: bytes) -> None:
        if self._carrying is None:
            head, _, self._early = data.partition(b"\r\n\r\n")
            self._client.pause_reading()
            self._carrying = asyncio.get_running_loop().create_task(self._carry(head))
        elif self._writer is None:
            self._early += data  # not every event loop heeds it this early that we do not read
        else:
            self._writer.write(data)
            if self._draining is None:
                self._client.pause_reading()
                self._draining = asyncio.get_running_loop().create_task(self._drain(self._writer))

    async def _drain(self, writer: Writer) -> None:
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
        for task in (self._carrying, self._draining):
            if task is not None:
                task.cancel()
        self._sockets.left(self)

    def abort(self) -> None:
        self._client.abort()

    def ping(self, silent_since: float) -> None:
        """If it has heard nothing since then. The answer goes to Jupyter, who is glad of any."""
        if self._told_at is not None and self._told_at <= silent_since and self._told.has_room:
            self._tell(PING)

    async def _carry(self, head: bytes) -> None:
        method, target, headers = _read_head(head)
        peer = self._client.get_extra_info("peername")
        guard = self._sockets.door.guard
        visitor = guard.greet(peer[0] if isinstance(peer, tuple) else None, headers)
        place = door.place_of(target.partition(b"?")[0].decode("latin-1"))
        try:
            if place is None:
                raise NotFound("there is no WebSocket here")
            guest = await self._sockets.door.admit(place, method, headers, visitor, is_websocket=True)
            self._sockets.enter(self, guest.grant)
            async with self._sockets.door.way(guest) as way:
                way.writer.write(_opening(method, target, headers, guest) + self._early)
                self._writer, self._early = way.writer, b""
                if not self._client.is_closing():
                    self._client.resume_reading()
                await self._bring_back(way.reader, place.path)
        except GpuDevError as error:
            log.info("jupyter.refused", code=error.code, error=error.message, request_id=visitor.request_id)
            guard.refused(visitor, error, method, "" if place is None else place.reservation_id)
            self._client.write(_as_bytes(refused(error, visitor.request_id, as_page=False)))
        except OSError as error:
            log.info("jupyter.broken", error=str(error), request_id=visitor.request_id)
        except Exception:
            log.exception("jupyter.unforeseen", request_id=visitor.request_id)
        self._client.close()

    async def _bring_back(self, reader: Reader, path: str) -> None:
        told, data = await _agreement(reader, path)
        self._client.write(_head(b"HTTP/1.1 101 Switching Protocols", [*_UPGRADE, *told]))
        self._tell(data)
        while data := await reader.read(_PIECE):
            self._tell(data)
            await self._may_write.wait()

    def _tell(self, data: bytes) -> None:
        self._told.passed(data)
        self._told_at = asyncio.get_running_loop().time()
        self._client.write(data)


def _opening(method: str, target: bytes, headers: Headers, guest: Guest) -> bytes:
    """The request as Jupyter is told it."""
    kept = [*_UPGRADE, *door.inwards(headers, guest.secrets.token)]
    return _head(b"%s %s HTTP/1.1" % (method.encode("latin-1"), target), kept)


async def _agreement(reader: Reader, path: str) -> tuple[Headers, bytes]:
    """What Jupyter says to it as a browser may be told it, and what came after."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[(b"host", b"jupyter"), *_UPGRADE]))
    http.send(h11.EndOfMessage())
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await reader.read(_PIECE))
    except h11.ProtocolError as error:
        raise Unavailable(f"what Jupyter says is no HTTP: {error}") from error
    if isinstance(event, h11.ConnectionClosed):
        raise Unavailable("Jupyter hung up before it answered")
    if not isinstance(event, h11.InformationalResponse) or event.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        # Not agreed to; what Jupyter says instead is nothing that would reach beyond its path.
        raise NotFound("Jupyter opens no WebSocket here")
    told = door.outwards([(bytes(name), bytes(value)) for name, value in event.headers], path)
    return told, http.trailing_data[0]


def _head(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join([first, *(b"%s: %s" % pair for pair in headers), b"", b""])


def _read_head(head: bytes) -> tuple[str, bytes, Headers]:
    """As the web server wrote it down for us: one header for each line, names in small letters."""
    first, *lines = head.split(b"\r\n")
    method, target, _ = first.split(b" ", 2)
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return method.decode("latin-1"), target, headers


def _as_bytes(response: Response) -> bytes:
    phrase = HTTPStatus(response.status_code).phrase
    lines = [f"HTTP/1.1 {response.status_code} {phrase}".encode(), b"connection: close"]
    lines += [b"%s: %s" % pair for pair in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])
