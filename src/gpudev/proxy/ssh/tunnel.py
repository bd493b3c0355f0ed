"""One session: a client's WebSocket and a TCP connection to a dev server, and the bytes between them.

Neither side is read while the other cannot take more, so a session holds no more than a few hundred kilobytes however
slow one end is. An empty binary message is the end of one direction, as a half-closed connection is on the other side.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import structlog
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from gpudev.domain.errors import GpuDevError
from gpudev.domain.sessions.grants import Close, Ending
from gpudev.proxy import door, websocket_frames
from gpudev.proxy.ssh.handshake import Traffic, Visitor
from gpudev.workflows.sessions.ssh_tokens import Admitted

if TYPE_CHECKING:
    from gpudev.proxy.ssh.sessions import Sessions

log = structlog.get_logger(__name__)
_HIGH_WATER = 256 * 1024
_LOW_WATER = 64 * 1024
_LITTLE_ROOM = 8 * 1024
_MUCH_ROOM = 256 * 1024
"""For what is read at once."""
_LARGEST_MESSAGE = 1024
_LAST_WORDS_SECONDS = 0.5
"""How long a client whose time is over has to hear why."""
_LAST_BYTES_SECONDS = 30.0
"""How long one has to take what the dev server said last; it answers our goodbye as soon as it has."""
_PONG = 0x8A
"""The first byte of an answer to a ping."""


class Tunnel(asyncio.BufferedProtocol):
    """The client's side; owns the other one."""

    def __init__(self, sessions: "Sessions") -> None:
        self._sessions = sessions
        self._websocket = ServerProtocol(max_size=_LARGEST_MESSAGE)
        self._splitter = websocket_frames.Splitter()
        self._client: asyncio.Transport
        self._server: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._visitor: Visitor | None = None
        self._admitted: Admitted | None = None
        self._has_spoken = True
        self._heard_at = 0.0
        self._began_at = 0.0
        self._is_lost = False
        self._ending: Ending | None = None
        self._client_is_done = False
        self._server_is_done = False
        self._early = b""
        self._room = memoryview(b"")
        self._room_wanted = _LITTLE_ROOM
        self._received = 0
        self._sent = 0
        self._is_full = False
        self._owed_pong = b""
        self._timers: list[asyncio.TimerHandle] = []

    # The client's connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)
        self._client.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        self._began_at = asyncio.get_running_loop().time()

    def get_buffer(self, sizehint: int) -> memoryview:
        """What was read last is passed on from where it lies: as long as some of it waits for the dev server, the next
        bytes go elsewhere."""
        is_waiting = self._server is not None and self._server.get_write_buffer_size() > 0
        if is_waiting or len(self._room) != self._room_wanted:
            self._room = memoryview(bytearray(self._room_wanted))
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        # Many sessions say little, and each has room of its own.
        self._room_wanted = _MUCH_ROOM if nbytes > _LITTLE_ROOM // 2 else _LITTLE_ROOM
        self.data_received(self._room[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        self._has_spoken = True
        if self._websocket.state is State.CONNECTING:
            self._understand(bytes(data))
            return
        for part in self._splitter.split(data):
            match part:
                case websocket_frames.Data(payload):
                    self._from_client(payload)
                case websocket_frames.End():
                    self._client_has_ended()
                case websocket_frames.Other(raw):
                    self._understand(raw)

    def _understand(self, raw: bytes) -> None:
        """Whatever is not simply bytes: the request at first, later pings, goodbyes and nonsense."""
        self._websocket.receive_data(raw)
        for event in self._websocket.events_received():
            if isinstance(event, Request):
                self._client.pause_reading()
                self._opening = asyncio.get_running_loop().create_task(self._open(event))
            elif isinstance(event, Frame) and event.opcode is Opcode.CLOSE:
                self._client_leaves()
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self.end(Ending(Close.UNSUPPORTED, "only binary messages mean something here"))
        self._say_what_is_due()

    def eof_received(self) -> None:
        self._websocket.receive_eof()
        self._hang_up()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._server is not None and not self._server.is_closing():
            self._server.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._owed_pong and self._websocket.state is State.OPEN:
            self._client.write(self._owed_pong)
        self._owed_pong = b""
        if self._server is not None and not self._server.is_closing():
            self._server.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        for timer in self._timers:
            timer.cancel()
        self._ending = self._ending or Ending(Close.DONE, "the client has gone")
        if self._opening is not None:
            self._opening.cancel()
        if self._server is not None:
            self._server.abort()
        self._sessions.left(self)
        if self._admitted is not None:
            self._tell_end(self._admitted, self._ending)

    # Opening

    async def _open(self, request: Request) -> None:
        response = self._websocket.accept(request)
        visitor = self._visitor = self._sessions.greet(self._peer(), request)
        if response.status_code == 101:
            try:
                self._admitted, self._server = await self._sessions.open(self, request, visitor)
                log.info("proxy.opened", request_id=visitor.request_id, **_who(self._admitted))
            except GpuDevError as error:
                log.info(
                    "proxy.refused",
                    request_id=visitor.request_id,
                    address=visitor.address,
                    code=error.code,
                    error=error.message,
                    cause=repr(error.__cause__),
                )
                response = door.refusal(error, visitor.request_id)
            except Exception:
                log.exception("proxy.unforeseen", request_id=visitor.request_id)
                response = door.refusal(GpuDevError("something went wrong on our side"), visitor.request_id)
        if self._is_lost:
            return
        self._websocket.send_response(response)
        self._say_what_is_due()
        if self._server is None:
            self._hang_up()
        elif self._ending is None:
            self._begin(self._server)

    def _begin(self, server: asyncio.Transport) -> None:
        if self._early:
            self.from_server(self._early)
            self._early = b""
        if self._server_is_done:
            self._pass_end_on()
        else:
            server.resume_reading()
        self._client.resume_reading()

    def far_side(self) -> asyncio.Protocol:
        return _FarSide(self)

    # Bytes from the client

    def _client_leaves(self) -> None:
        """The library has answered already."""
        self._ending = self._ending or Ending(Close.DONE, "")
        if self._server is not None:
            self._server.close() if self._client_is_done else self._server.abort()

    def _from_client(self, payload: bytes | memoryview) -> None:
        if self._server is None or self._client_is_done or self._server.is_closing():
            return
        self._received += len(payload)
        self._server.write(payload)

    def _client_has_ended(self) -> None:
        if self._server is None or self._client_is_done or self._server.is_closing():
            return
        self._client_is_done = True
        if self._server_is_done:
            self._finish()
        else:
            self._server.write_eof()

    # Bytes from the dev server

    def from_server(self, data: bytes) -> None:
        if self._websocket.state is State.CONNECTING:
            self._early += data
        elif self._websocket.state is State.OPEN:
            self._sent += len(data)
            self._client.writelines((websocket_frames.header(len(data)), data))

    def server_is_done(self) -> None:
        self._server_is_done = True
        self._sessions.look_first(self._pass_end_on)

    def _pass_end_on(self) -> None:
        if self._client_is_done:
            self._finish()
        elif self._websocket.state is State.OPEN:
            self._client.write(websocket_frames.header(0))

    def server_is_lost(self, error: Exception | None) -> None:
        if error is not None or not self._server_is_done:
            self._sessions.look_first(lambda: self.end(Ending(Close.BROKEN, "the dev server cut the connection")))
        else:
            self._finish()

    def stop_reading_client(self) -> None:
        if not self._client.is_closing():
            self._client.pause_reading()

    def go_on_reading_client(self) -> None:
        if not self._client.is_closing():
            self._client.resume_reading()

    # Ends

    def _finish(self) -> None:
        self.end(Ending(Close.DONE, ""))

    def end(self, ending: Ending) -> None:
        """Nothing goes through from here on; the client is told why, and is gone shortly after."""
        if self._ending is not None or self._is_lost:
            return
        self._ending = ending
        if self._server is not None:
            # What was said in full still arrives; what is cut off is cut off now.
            self._server.close() if ending.close is Close.DONE else self._server.abort()
        if self._websocket.state is State.OPEN:
            self._websocket.send_close(ending.close, ending.reason)
            self._say_what_is_due()
        if self._opening is not None and not self._opening.done():
            self._hang_up()
            return
        self.go_on_reading_client()  # the answer to our goodbye
        patience = _LAST_BYTES_SECONDS if ending.close in (Close.DONE, Close.BROKEN) else _LAST_WORDS_SECONDS
        self._later(patience, self._client.close)
        self._later(2 * patience, self._client.abort)

    def _hang_up(self) -> None:
        """When what was said last has arrived; whoever does not take it keeps nothing open by that."""
        self._client.close()
        self._later(_LAST_BYTES_SECONDS, self._client.abort)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))

    def _say_what_is_due(self) -> None:
        """Answers to pings and goodbyes are the library's own; an empty text means that it is done. Of many pings that
        a client sends and hears no answer to, the last is answered when it listens again: nothing piles up."""
        for data in self._websocket.data_to_send():
            if not data:
                self._hang_up()
            elif self._is_full and data[0] == _PONG:
                self._owed_pong = data
            else:
                self._client.write(data)

    def ping(self) -> None:
        if self._websocket.state is State.OPEN:
            try:
                self._websocket.send_ping(b"")
            except InvalidState:
                return
            self._say_what_is_due()

    def silent_for(self, now: float) -> float:
        """To be asked now and then: what was heard in between counts from the time of asking. A client that we do not
        listen to at the moment is not silent."""
        if self._has_spoken or not self._client.is_reading():
            self._has_spoken, self._heard_at = False, now
        return now - self._heard_at

    def _peer(self) -> str | None:
        peer = self._client.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else None

    def _tell_end(self, admitted: Admitted, ending: Ending) -> None:
        assert self._visitor is not None
        seconds = asyncio.get_running_loop().time() - self._began_at
        log.info(
            "proxy.closed",
            request_id=self._visitor.request_id,
            **_who(admitted),
            close=ending.close.value,
            reason=ending.reason,
            seconds=round(seconds, 3),
            received=self._received,
            sent=self._sent,
        )
        self._sessions.ended(self._visitor, admitted, ending, Traffic(seconds, self._received, self._sent))


def _who(admitted: Admitted) -> dict[str, str]:
    return {"user": admitted.username, "reservation_id": str(admitted.grant.reservation_id)}


class _FarSide(asyncio.Protocol):
    """The dev server's side."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = cast(asyncio.Transport, transport)
        server.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        # Until the client has been told that it is in. Not every event loop heeds it this early, so what comes all the
        # same (a greeting) is kept.
        server.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._tunnel.from_server(data)

    def eof_received(self) -> bool:
        self._tunnel.server_is_done()
        return True  # the other direction stays open

    def pause_writing(self) -> None:
        self._tunnel.stop_reading_client()

    def resume_writing(self) -> None:
        self._tunnel.go_on_reading_client()

    def connection_lost(self, error: Exception | None) -> None:
        self._tunnel.server_is_lost(error)
