"""The tunnel of one session: bytes between a client's WebSocket and a dev server.

Neither side is read while the other cannot accept more, so a session buffers at most a few hundred kilobytes. An empty
binary message marks the end of one direction, like a half-closed TCP connection on the dev server's side.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol, cast

import structlog
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from gpudev.domain.errors import GpuDevError
from gpudev.domain.sessions.grants import CloseCode, SessionEnd
from gpudev.http_edge.audit import ProxyClient
from gpudev.proxy.loop_share import TINY_BYTES, LoopShare, WorkSlice
from gpudev.proxy.ssh import handshake
from gpudev.proxy.ssh.handshake import SessionTraffic
from gpudev.wire import websocket
from gpudev.workflows.sessions.ssh_tokens import AdmittedSession

try:
    from websockets.speedups import apply_mask
except ImportError:  # not built for this platform
    from websockets.utils import apply_mask

log = structlog.get_logger(__name__)
_HIGH_WATER = 256 * 1024
_LOW_WATER = 64 * 1024
_SMALL_BUFFER = 8 * 1024
_LARGE_BUFFER = 256 * 1024
"""Size of one read."""
_JOIN_BELOW = 8 * 1024
"""Smaller payloads are copied into one write; larger ones are written without a copy."""
_MANY_TINY_FRAMES = 8
"""In one slice."""
_LARGEST_MESSAGE = 1024
_CLOSE_REASON_SECONDS = 0.5
"""How long a client has to receive the close reason before its connection is closed."""
_DRAIN_SECONDS = 30.0
"""How long a client has to receive the dev server's last bytes. It answers the close frame when it has."""
_PONG = 0x8A
"""The first byte of a pong frame."""


class Tunnel(asyncio.BufferedProtocol):
    """The client's side of a session; owns the dev server's side."""

    def __init__(self, sessions: "SessionRegistry", peer: str | None = None) -> None:
        self._sessions = sessions
        self._given_peer = peer
        self._websocket = ServerProtocol(max_size=_LARGEST_MESSAGE)
        self._frames: websocket.FrameReader | None = websocket.FrameReader(apply_mask)
        """None: after a protocol error, the library handles everything."""
        self._client: asyncio.Transport
        self._server: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._proxy_client: ProxyClient | None = None
        self._admitted: AdmittedSession | None = None
        self._has_received = True
        self._received_at = 0.0
        self._began_at = 0.0
        self._is_lost = False
        self._ending: SessionEnd | None = None
        self._client_is_done = False
        self._server_is_done = False
        self._buffered = b""
        self._buffer = memoryview(b"")
        self._buffer_size = _SMALL_BUFFER
        self._received = 0
        self._sent = 0
        self._is_full = False
        self._server_is_full = False
        self._events: Iterator[websocket.FrameEvent] | None = None
        """Frames of the last read that are still to be handled; the client is not read meanwhile."""
        self._unread = b""
        self._pending_pong = b""
        self._timers: list[asyncio.TimerHandle] = []

    # The client's connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)
        self._client.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        self._began_at = asyncio.get_running_loop().time()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The last read is forwarded without a copy, so while part of it is still to be handled, or to be written to
        the dev server, the next read needs another buffer."""
        is_waiting = self._events is not None or (self._server is not None and self._server.get_write_buffer_size() > 0)
        if is_waiting or len(self._buffer) != self._buffer_size:
            self._buffer = memoryview(bytearray(self._buffer_size))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        # Most sessions transfer little; a small buffer saves memory.
        self._buffer_size = _LARGE_BUFFER if nbytes > _SMALL_BUFFER // 2 else _SMALL_BUFFER
        self.data_received(self._buffer[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        self._has_received = True
        if self._websocket.state is State.CONNECTING or self._frames is None:
            self.handle_control(bytes(data))
            return
        if self._events is not None:
            self._unread += bytes(data)  # not every event loop respects pause_reading at once
            return
        self._events = self._frames.read(data)
        self._handle_frames(WorkSlice())

    def _handle_frames(self, work: WorkSlice) -> None:
        """For one slice; then everybody else is served before the rest."""
        if self._events is None or self._is_lost:
            return
        batch = _FrameBatch(self)
        try:
            for event in self._events:
                batch.add(event)
                if work.is_over():
                    break
            else:
                self._events = None
            batch.flush()
        except websocket.BrokenProtocol as error:
            self._events = self._frames = None
            batch.flush()
            self.handle_control(error.rest)
        if batch.tiny and self._sessions.has_too_many_tiny_frames(self, batch.tiny):
            self._events, self._unread = None, b""
            self.end(SessionEnd(CloseCode.TINY_FRAMES, "too many tiny frames"))
        elif self._events is not None:
            self.pause_client()
            self._sessions.share.call_next(self._continue_frames, is_wasteful=batch.tiny > _MANY_TINY_FRAMES)
        elif self._unread:
            unread, self._unread = self._unread, b""
            self.data_received(unread)

    def _continue_frames(self) -> None:
        work = WorkSlice()
        work.restart()
        self._handle_frames(work)
        if self._events is None and not self._server_is_full:
            self.resume_client()

    def handle_control(self, raw: bytes) -> None:
        """Everything but data: the handshake request, pings, close frames and invalid frames."""
        self._websocket.receive_data(raw)
        for event in self._websocket.events_received():
            if isinstance(event, Request):
                self._client.pause_reading()
                self._opening = asyncio.get_running_loop().create_task(self._open(event))
            elif isinstance(event, Frame) and event.opcode is Opcode.CLOSE:
                self._on_client_close()
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self.end(SessionEnd(CloseCode.UNSUPPORTED, "only binary messages are supported"))
        self._send_pending()

    def eof_received(self) -> None:
        self._websocket.receive_eof()
        self._close_client()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._server is not None and not self._server.is_closing():
            self._server.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._pending_pong and self._websocket.state is State.OPEN:
            self._client.write(self._pending_pong)
        self._pending_pong = b""
        if self._server is not None and not self._server.is_closing():
            self._server.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        for timer in self._timers:
            timer.cancel()
        self._ending = self._ending or SessionEnd(CloseCode.DONE, "the client disconnected")
        if self._opening is not None:
            self._opening.cancel()
        if self._server is not None:
            self._server.abort()
        self._sessions.remove(self)
        if self._admitted is not None:
            self._report_end(self._admitted, self._ending)

    # Opening

    async def _open(self, request: Request) -> None:
        response = self._websocket.accept(request)
        client = self._proxy_client = self._sessions.identify_client(self._peer(), request)
        if response.status_code == 101:
            try:
                self._admitted, self._server = await self._sessions.open_session(self, request, client)
                log.info("proxy.opened", request_id=client.request_id, **_log_fields(self._admitted))
            except GpuDevError as error:
                log.info(
                    "proxy.denied",
                    request_id=client.request_id,
                    address=client.address,
                    code=error.code,
                    error=error.message,
                    cause=repr(error.__cause__),
                )
                response = handshake.handshake_error(error, client.request_id)
            except Exception:
                log.exception("proxy.unexpected_error", request_id=client.request_id)
                response = handshake.handshake_error(GpuDevError("internal error"), client.request_id)
        if self._is_lost:
            return
        self._websocket.send_response(response)
        self._send_pending()
        if self._server is None:
            self._close_client()
        elif self._ending is None:
            self._start_forwarding(self._server)

    def _start_forwarding(self, server: asyncio.Transport) -> None:
        if self._buffered:
            self.forward_to_client(self._buffered)
            self._buffered = b""
        if self._server_is_done:
            self._forward_eof()
        else:
            server.resume_reading()
        self._client.resume_reading()

    def make_server_side(self) -> asyncio.Protocol:
        return _ServerSide(self)

    # Bytes from the client

    def _on_client_close(self) -> None:
        """The library has already answered the close frame."""
        self._ending = self._ending or SessionEnd(CloseCode.DONE, "")
        if self._server is not None:
            self._server.close() if self._client_is_done else self._server.abort()

    def forward_to_server(self, payloads: list[bytes | memoryview]) -> None:
        if self._server is None or self._client_is_done or self._server.is_closing():
            return
        size = sum(map(len, payloads))
        self._received += size
        if size > _JOIN_BELOW * len(payloads):
            self._server.writelines(payloads)
        else:
            self._server.write(b"".join(payloads))

    def on_client_eof(self) -> None:
        if self._server is None or self._client_is_done or self._server.is_closing():
            return
        self._client_is_done = True
        if self._server_is_done:
            self._finish()
        else:
            self._server.write_eof()

    # Bytes from the dev server

    def forward_to_client(self, data: bytes) -> None:
        if self._websocket.state is State.CONNECTING:
            self._buffered += data
        elif self._websocket.state is State.OPEN:
            self._sent += len(data)
            self._client.writelines((websocket.server_data_header(len(data)), data))

    def on_server_eof(self) -> None:
        self._server_is_done = True
        self._sessions.end_expired_first(self._forward_eof)

    def _forward_eof(self) -> None:
        if self._client_is_done:
            self._finish()
        elif self._websocket.state is State.OPEN:
            self._client.write(websocket.server_data_header(0))

    def on_server_lost(self, error: Exception | None) -> None:
        if error is not None or not self._server_is_done:
            self._sessions.end_expired_first(
                lambda: self.end(SessionEnd(CloseCode.BROKEN, "the dev server closed the connection"))
            )
        else:
            self._finish()

    def on_server_full(self) -> None:
        self._server_is_full = True
        self.pause_client()

    def on_server_drained(self) -> None:
        self._server_is_full = False
        self.resume_client()

    def pause_client(self) -> None:
        if not self._client.is_closing():
            self._client.pause_reading()

    def resume_client(self) -> None:
        """Unless frames of the last read are still to be handled, or no more are wanted."""
        is_cut = self._ending is not None and self._ending.code is CloseCode.TINY_FRAMES
        if self._events is None and not is_cut and not self._client.is_closing():
            self._client.resume_reading()

    # Ends

    def _finish(self) -> None:
        self.end(SessionEnd(CloseCode.DONE, ""))

    def end(self, ending: SessionEnd) -> None:
        """Stops forwarding, sends the close reason to the client, and closes its connection shortly after."""
        if self._ending is not None or self._is_lost:
            return
        self._ending = ending
        if self._server is not None:
            # A completed session still delivers its last bytes; any other is cut off now.
            self._server.close() if ending.code is CloseCode.DONE else self._server.abort()
        if self._websocket.state is State.OPEN:
            self._websocket.send_close(ending.code, ending.reason)
            self._send_pending()
        if self._opening is not None and not self._opening.done():
            self._close_client()
            return
        self.resume_client()  # to receive the answer to our close frame
        timeout = _DRAIN_SECONDS if ending.code in (CloseCode.DONE, CloseCode.BROKEN) else _CLOSE_REASON_SECONDS
        self._call_later(timeout, self._client.close)
        self._call_later(2 * timeout, self._client.abort)

    def _close_client(self) -> None:
        """Closes when the last bytes are delivered; a client that does not read is aborted after a while."""
        self._client.close()
        self._call_later(_DRAIN_SECONDS, self._client.abort)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, callback))

    def _send_pending(self) -> None:
        """Sends the library's pongs and close frames; empty data means that the connection is done. While the client
        does not read, only the last pong is kept, so that pings cannot fill memory."""
        for data in self._websocket.data_to_send():
            if not data:
                self._close_client()
            elif self._is_full and data[0] == _PONG:
                self._pending_pong = data
            else:
                self._client.write(data)

    def ping(self) -> None:
        if self._websocket.state is State.OPEN:
            try:
                self._websocket.send_ping(b"")
            except InvalidState:
                return
            self._send_pending()

    def silent_for(self, now: float) -> float:
        """Seconds without data from the client, at the resolution of the calls. While reading is paused, the client
        is not silent."""
        if self._has_received or not self._client.is_reading():
            self._has_received, self._received_at = False, now
        return now - self._received_at

    def _peer(self) -> str | None:
        peer = self._client.get_extra_info("peername")
        return self._given_peer or (str(peer[0]) if isinstance(peer, tuple) else None)

    def _report_end(self, admitted: AdmittedSession, ending: SessionEnd) -> None:
        assert self._proxy_client is not None
        seconds = asyncio.get_running_loop().time() - self._began_at
        log.info(
            "proxy.closed",
            request_id=self._proxy_client.request_id,
            **_log_fields(admitted),
            close=ending.code.value,
            reason=ending.reason,
            seconds=round(seconds, 3),
            received=self._received,
            sent=self._sent,
        )
        self._sessions.record_ended(
            self._proxy_client, admitted, ending, SessionTraffic(seconds, self._received, self._sent)
        )


def _log_fields(admitted: AdmittedSession) -> dict[str, str]:
    return {"user": admitted.username, "reservation_id": str(admitted.grant.reservation_id)}


class _FrameBatch:
    """The frames of one slice. Their payloads are forwarded together."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._payloads: list[bytes | memoryview] = []
        self.tiny = 0

    def add(self, event: websocket.FrameEvent) -> None:
        match event:
            case websocket.DataEvent(payload):
                self._payloads.append(payload)
                self.tiny += len(payload) < TINY_BYTES
            case websocket.EndEvent():
                self.flush()
                self._tunnel.on_client_eof()
                self.tiny += 1
            case websocket.ControlEvent(payload=payload, frame=frame):
                self.tiny += len(payload) < TINY_BYTES
                self.flush()
                self._tunnel.handle_control(frame)

    def flush(self) -> None:
        if self._payloads:
            self._tunnel.forward_to_server(self._payloads)
            self._payloads = []


class SessionRegistry(Protocol):
    """What a tunnel needs from all sessions of this process."""

    share: LoopShare

    def has_too_many_tiny_frames(self, tunnel: Tunnel, count: int) -> bool:
        """Counts this many more tiny frames of the session's user."""
        ...

    def identify_client(self, peer: str | None, request: Request) -> ProxyClient: ...

    async def open_session(
        self, tunnel: Tunnel, request: Request, client: ProxyClient
    ) -> tuple[AdmittedSession, asyncio.Transport]:
        """Raises GpuDevError with the reason."""
        ...

    def record_ended(
        self, client: ProxyClient, admitted: AdmittedSession, ending: SessionEnd, traffic: SessionTraffic
    ) -> None: ...

    def remove(self, tunnel: Tunnel) -> None: ...

    def end_expired_first(self, then: Callable[[], None]) -> None:
        """Ends sessions that are no longer permitted, with their own reason, before calling `then`."""
        ...


class _ServerSide(asyncio.Protocol):
    """The dev server's side."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = cast(asyncio.Transport, transport)
        server.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        # Until the client has the handshake response. Not every event loop respects this so early, so data that arrives
        # anyway (the SSH banner) is buffered.
        server.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._tunnel.forward_to_client(data)

    def eof_received(self) -> bool:
        self._tunnel.on_server_eof()
        return True  # the other direction stays open

    def pause_writing(self) -> None:
        self._tunnel.on_server_full()

    def resume_writing(self) -> None:
        self._tunnel.on_server_drained()

    def connection_lost(self, error: Exception | None) -> None:
        self._tunnel.on_server_lost(error)
