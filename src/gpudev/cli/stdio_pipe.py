"""Standard input and output as one end of a connection: a WebSocket, or a plain socket.

One chunk at most is under way in each direction, and neither direction waits for the other: what the slower end does
not take is not read from the faster one. Nothing about ssh is known here.
"""

import errno
import fcntl
import os
import select
import socket
import stat
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from gpudev.sdk.errors import Unreachable
from gpudev.wire import websocket

_CHUNK = 512 * 1024
"""At most so much is read at once: what is there, and larger steps when there is much."""
_PIPE_SIZE = 1024 * 1024
_LARGE_READ = 32 * 1024
_GATHER_SECONDS = 0.0005
"""Where much comes at once, more is on its way: one larger step is cheaper than many."""
_MORE = getattr(socket, "MSG_MORE", 0)
_IN, _OUT = select.POLLIN, select.POLLOUT
_GONE = select.POLLHUP | select.POLLERR
SILENCE_SECONDS = 90.0
"""The server pings every 20 seconds: when it has said nothing for so long, it is not there any more."""
_CLOSE_SECONDS = 2.0


class Framing(Protocol):
    """How bytes are said on the connection."""

    silence: float | None

    def header(self, size: int) -> bytes:
        """What goes before so many bytes of ours; before none: no more will come."""
        ...

    def decode(self, received: memoryview) -> Iterator[websocket.FrameEvent]: ...


class PlainFraming:
    """As they are."""

    silence: float | None = None

    def header(self, size: int) -> bytes:
        return b""

    def decode(self, received: memoryview) -> Iterator[websocket.FrameEvent]:
        yield websocket.DataEvent(received)


class WebSocketFraming:
    """In a WebSocket's messages."""

    silence: float | None = SILENCE_SECONDS

    def __init__(self) -> None:
        self._reader = websocket.FrameReader()

    def header(self, size: int) -> bytes:
        return websocket.client_data_header(size)

    def decode(self, received: memoryview) -> Iterator[websocket.FrameEvent]:
        return self._reader.read(received)


class StdioPipe:
    def __init__(self, line: socket.socket, speech: Framing, source: int = 0, sink: int = 1) -> None:
        self._socket = line
        self._framing = speech
        self._source = source
        self._sink = sink
        self._buffer = memoryview(bytearray(_CHUNK))
        self._outgoing = memoryview(bytearray(_CHUNK))
        """Read into only while nothing of it is left to say."""
        self._to_send: list[memoryview] = []
        self._to_move = 0
        """Bytes that were announced and go from the source to the line without being looked at, before what is said
        afterwards."""
        self._to_send_after_move: list[memoryview] = []
        self._to_write: list[memoryview] = []
        self._source_ended = False
        self._socket_ended = False
        self._closed: websocket.ClosePayload | None = None
        self._retry_at_once = False
        self._is_tls = hasattr(line, "pending")
        self._would_block = _would_block_errors(self._is_tls)
        self._can_move = _can_move(source, line)
        self._polls: dict[tuple[bool, bool, int], select.poll] = {}

    def run(self, first: bytes = b"") -> websocket.ClosePayload | None:
        """Until both directions have ended or the other side says goodbye, which is answered. `first`: what was
        received already. Raises Unreachable when the connection breaks, BrokenPipeError when nobody reads us."""
        self._socket.setblocking(False)
        with _non_blocking(self._sink), _enlarged_pipe(self._source):
            try:
                if first:
                    self._handle_received(memoryview(first))
                while not self._is_over():
                    self._run_once()
            except websocket.BrokenProtocol as error:
                raise Unreachable(f"what comes from the proxy makes no sense ({error})", sent=True) from error
        return self._closed

    def _is_over(self) -> bool:
        if self._to_write:
            return False
        return self._closed is not None or (self._socket_ended and self._source_ended and not self._has_to_send())

    def _has_to_send(self) -> bool:
        return bool(self._to_send or self._to_move)

    def _run_once(self) -> None:
        """Wait until something can be done, and do it."""
        may_read = not self._has_to_send() and not self._source_ended
        line = (_OUT if self._has_to_send() else 0) | (_IN if not self._to_write and not self._socket_ended else 0)
        ready = dict(self._poll(may_read, bool(self._to_write), line).poll(self._poll_timeout()))
        if not ready and not self._retry_at_once:
            raise Unreachable("the connection to the proxy is dead: nothing was heard for too long", sent=True)
        if self._source in ready:
            self._read_source()
        if self._sink in ready:
            self._write_sink()
        happened = ready.get(self._socket.fileno(), 0)
        if self._has_to_send() and happened & (_OUT | _GONE):
            self._send()
        if not self._to_write and not self._socket_ended and (happened & (_IN | _GONE) or self._retry_at_once):
            self._receive()

    def _poll(self, may_read: bool, must_write: bool, line: int) -> "select.poll":
        """There are few ways to wait; each is made once."""
        poll = self._polls.get((may_read, must_write, line))
        if poll is None:
            poll = self._polls[may_read, must_write, line] = select.poll()
            if line:  # one that nothing is wanted of would tell again and again that it has ended
                poll.register(self._socket, line)
            if may_read:
                poll.register(self._source, _IN)
            if must_write:
                poll.register(self._sink, _OUT)
        return poll

    def _poll_timeout(self) -> float | None:
        """In milliseconds. Who cannot write is not waiting for the other side."""
        if self._retry_at_once and not self._to_write:
            return 0
        return None if self._framing.silence is None or self._to_write else self._framing.silence * 1000

    def _read_source(self) -> None:
        size = self._to_move = _readable_bytes(self._source) if self._can_move else 0
        if size:
            parts: list[bytes | memoryview] = [self._framing.header(size)]
        else:
            data = self._outgoing[: os.readv(self._source, [self._outgoing])]
            size = len(data)
            self._source_ended = not size
            if self._source_ended and isinstance(self._framing, PlainFraming):
                _end_sending(self._socket)
                return
            parts = [self._framing.header(size), data]
        self._to_send = [memoryview(part) for part in parts if part]
        self._send()
        if size >= _LARGE_READ and not self._has_to_send():
            time.sleep(_GATHER_SECONDS)

    def _send(self) -> None:
        try:
            if not self._to_send:
                self._move()
            elif self._is_tls:
                # One record for header and payload.
                self._to_send = [memoryview(b"".join(self._to_send))] if len(self._to_send) > 1 else self._to_send
                _drop_bytes(self._to_send, self._socket.send(self._to_send[0]))
            else:
                _drop_bytes(self._to_send, self._socket.sendmsg(self._to_send, (), _MORE if self._to_move else 0))
                if self._to_move and not self._to_send:
                    self._move()
        except self._would_block:
            return
        except OSError as error:
            # What the other side said last may still lie here, and says more than a broken connection does.
            self._to_send, self._to_move, self._to_send_after_move, self._source_ended = [], 0, [], True
            if self._socket_ended:
                raise _connection_cut(error) from error

    def _move(self) -> None:
        """From pipe to socket inside the kernel. Where that cannot be done, what was announced is read after all."""
        try:
            self._to_move -= os.splice(self._source, self._socket.fileno(), self._to_move, flags=os.SPLICE_F_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            self._can_move = False
            data = os.read(self._source, min(self._to_move, _CHUNK))
            self._to_move -= len(data)
            self._to_send = [memoryview(data)]
        if not self._to_move:
            self._to_send += self._to_send_after_move
            self._to_send_after_move = []

    def _receive(self) -> None:
        try:
            count = self._socket.recv_into(self._buffer)
        except self._would_block:
            self._retry_at_once = False
            return
        except OSError as error:
            raise _connection_cut(error) from error
        # A TLS record may hold more than was taken, and polling the socket does not tell.
        self._retry_at_once = self._is_tls and self._socket.pending() > 0  # type: ignore[attr-defined]
        if count == 0:
            if isinstance(self._framing, WebSocketFraming):
                raise _connection_cut(None)
            self._end_receiving()
            return
        self._handle_received(self._buffer[:count])

    def _handle_received(self, received: memoryview) -> None:
        for event in self._framing.decode(received):
            match event:
                case websocket.DataEvent(payload):
                    self._to_write.append(memoryview(payload))
                case websocket.EndEvent():
                    self._end_receiving()
                case websocket.ControlEvent(websocket.PING, payload):
                    waiting = self._to_send_after_move if self._to_move else self._to_send
                    waiting.append(memoryview(websocket.client_pong(payload)))
                case websocket.ControlEvent(websocket.CLOSE, payload):
                    self._closed = websocket.parse_close(payload)
                    return
        if self._to_write:
            self._write_sink()
        if self._socket_ended and not self._to_write:
            self._end_writing()

    def _end_receiving(self) -> None:
        self._socket_ended = True
        if not self._to_write:
            self._end_writing()

    def _write_sink(self) -> None:
        try:
            written = os.writev(self._sink, self._to_write[:64])
        except BlockingIOError:
            return
        _drop_bytes(self._to_write, written)
        if self._socket_ended and not self._to_write:
            self._end_writing()

    def _end_writing(self) -> None:
        """Whoever reads us learns that no more comes."""
        if self._sink is not None and self._sink >= 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._sink)
            os.close(null)


def _would_block_errors(is_tls: bool) -> tuple[type[OSError], ...]:
    """What a line says that can do nothing at the moment. Without TLS there is no need to load what knows it."""
    if not is_tls:
        return (BlockingIOError,)
    import ssl

    return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _can_move(source: int, line: socket.socket) -> bool:
    """Whether the kernel can take bytes from the one to the other by itself: Linux, a pipe, a TCP line without TLS."""
    is_plain = not hasattr(line, "pending") and line.family in (socket.AF_INET, socket.AF_INET6)
    return hasattr(os, "splice") and is_plain and stat.S_ISFIFO(os.fstat(source).st_mode)


def _readable_bytes(pipe: int) -> int:
    """How many bytes can be taken at once. None: it has ended."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def close_websocket(line: socket.socket) -> None:
    """The end of a WebSocket, without waiting long for an answer."""
    try:
        line.settimeout(_CLOSE_SECONDS)
        line.sendall(websocket.client_close(1000))
        deadline = time.monotonic() + _CLOSE_SECONDS
        while line.recv(65536) and time.monotonic() < deadline:
            pass
    except OSError:
        pass
    finally:
        line.close()


def _connection_cut(error: OSError | None) -> Unreachable:
    why = f" ({error.strerror})" if error is not None and error.strerror else ""
    return Unreachable(f"the connection was cut{why}", sent=True)


def _end_sending(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_WR)


def _drop_bytes(parts: list[memoryview], count: int) -> None:
    """So many bytes off the front."""
    while count:
        if count < len(parts[0]):
            parts[0] = parts[0][count:]
            return
        count -= len(parts.pop(0))


@contextmanager
def _non_blocking(descriptor: int) -> Iterator[None]:
    """Pipes and sockets only: what else there is belongs to others too, or never blocks for long."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    with _enlarged_pipe(descriptor):
        before = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)
        try:
            yield
        finally:
            os.set_blocking(descriptor, before)


@contextmanager
def _enlarged_pipe(descriptor: int) -> Iterator[None]:
    """A pipe that holds more needs fewer turns. Only Linux can, and not always: it goes without, too."""
    resize: int | None = getattr(fcntl, "F_SETPIPE_SZ", None)
    if resize is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with suppress(OSError):
            fcntl.fcntl(descriptor, resize, _PIPE_SIZE)
    yield
