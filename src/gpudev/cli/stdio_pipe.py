"""Standard input and output as one end of a connection: a WebSocket, or a plain socket.

At most one chunk is in flight per direction, and the directions are independent: data is read only as fast as the
other end accepts it. Knows nothing about ssh.
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
"""Upper limit of one read."""
_PIPE_SIZE = 1024 * 1024
_LARGE_READ = 32 * 1024
_GATHER_SECONDS = 0.0005
"""After a large read more data follows soon; one larger read is cheaper than many small ones."""
_MORE = getattr(socket, "MSG_MORE", 0)
_IN, _OUT = select.POLLIN, select.POLLOUT
_GONE = select.POLLHUP | select.POLLERR
SILENCE_SECONDS = 90.0
"""The server pings every 20 seconds; after this much silence the connection counts as dead."""
_CLOSE_SECONDS = 2.0


class Framing(Protocol):
    """How bytes are framed on the connection."""

    silence: float | None

    def header(self, size: int) -> bytes:
        """What precedes `size` bytes of payload; size 0 announces the end."""
        ...

    def decode(self, received: memoryview) -> Iterator[websocket.FrameEvent]: ...


class PlainFraming:
    """Raw bytes."""

    silence: float | None = None

    def header(self, size: int) -> bytes:
        return b""

    def decode(self, received: memoryview) -> Iterator[websocket.FrameEvent]:
        yield websocket.DataEvent(received)


class WebSocketFraming:
    """WebSocket messages."""

    silence: float | None = SILENCE_SECONDS

    def __init__(self) -> None:
        self._reader = websocket.FrameReader()

    def header(self, size: int) -> bytes:
        return websocket.client_data_header(size)

    def decode(self, received: memoryview) -> Iterator[websocket.FrameEvent]:
        return self._reader.read(received)


class StdioPipe:
    def __init__(self, line: socket.socket, framing: Framing, source: int = 0, sink: int = 1) -> None:
        self._socket = line
        self._framing = framing
        self._source = source
        self._sink = sink
        self._buffer = memoryview(bytearray(_CHUNK))
        self._outgoing = memoryview(bytearray(_CHUNK))
        """Read into only while nothing of it is left to send."""
        self._to_send: list[memoryview] = []
        self._to_move = 0
        """Announced bytes that the kernel moves from the source to the socket, before `_to_send_after_move`."""
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
        """Run until both directions have ended or the peer closes; returns its close payload. `first`: bytes already
        received. Raises Unreachable if the connection breaks, BrokenPipeError if the sink is closed."""
        self._socket.setblocking(False)
        with _non_blocking(self._sink), _enlarged_pipe(self._source):
            try:
                if first:
                    self._handle_received(memoryview(first))
                while not self._is_over():
                    self._run_once()
            except websocket.BrokenProtocol as error:
                raise Unreachable(f"invalid data from the proxy ({error})", sent=True) from error
        return self._closed

    def _is_over(self) -> bool:
        if self._to_write:
            return False
        return self._closed is not None or (self._socket_ended and self._source_ended and not self._has_to_send())

    def _has_to_send(self) -> bool:
        return bool(self._to_send or self._to_move)

    def _run_once(self) -> None:
        """Wait for readiness and handle it."""
        may_read = not self._has_to_send() and not self._source_ended
        line = (_OUT if self._has_to_send() else 0) | (_IN if not self._to_write and not self._socket_ended else 0)
        ready = dict(self._poll(may_read, bool(self._to_write), line).poll(self._poll_timeout()))
        if not ready and not self._retry_at_once:
            raise Unreachable("the connection to the proxy is dead: nothing received for too long", sent=True)
        if self._source in ready:
            self._read_source()
        if self._sink in ready:
            self._write_sink()
        events = ready.get(self._socket.fileno(), 0)
        if self._has_to_send() and events & (_OUT | _GONE):
            self._send()
        if not self._to_write and not self._socket_ended and (events & (_IN | _GONE) or self._retry_at_once):
            self._receive()

    def _poll(self, may_read: bool, must_write: bool, line: int) -> "select.poll":
        """Poll objects are cached; there are few combinations."""
        poll = self._polls.get((may_read, must_write, line))
        if poll is None:
            poll = self._polls[may_read, must_write, line] = select.poll()
            if line:  # a registered socket without interest would report its end in a busy loop
                poll.register(self._socket, line)
            if may_read:
                poll.register(self._source, _IN)
            if must_write:
                poll.register(self._sink, _OUT)
        return poll

    def _poll_timeout(self) -> float | None:
        """In milliseconds. While the sink is blocked, silence of the peer does not count."""
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
            # The peer's close message may still be unread, and says more than a broken connection.
            self._to_send, self._to_move, self._to_send_after_move, self._source_ended = [], 0, [], True
            if self._socket_ended:
                raise _connection_cut(error) from error

    def _move(self) -> None:
        """Move from pipe to socket inside the kernel. If that is unsupported, read the announced bytes instead."""
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
        # A TLS record may hold more data that poll does not report.
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
                case websocket.DataEvent(payload) if payload:
                    self._to_write.append(memoryview(payload))
                case websocket.EndEvent():
                    self._end_receiving()
                case websocket.ControlEvent(websocket.PING, payload):
                    pending = self._to_send_after_move if self._to_move else self._to_send
                    pending.append(memoryview(websocket.client_pong(payload)))
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
        """Signal end of file to the reader of the sink."""
        if self._sink is not None and self._sink >= 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._sink)
            os.close(null)


def _would_block_errors(is_tls: bool) -> tuple[type[OSError], ...]:
    """Errors that mean "try later". Imports ssl only for TLS."""
    if not is_tls:
        return (BlockingIOError,)
    import ssl

    return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _can_move(source: int, line: socket.socket) -> bool:
    """Whether splice works: Linux, a pipe, a TCP socket without TLS."""
    is_plain = not hasattr(line, "pending") and line.family in (socket.AF_INET, socket.AF_INET6)
    return hasattr(os, "splice") and is_plain and stat.S_ISFIFO(os.fstat(source).st_mode)


def _readable_bytes(pipe: int) -> int:
    """Bytes that can be read without blocking; 0 at the end."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def close_websocket(line: socket.socket) -> None:
    """Close a WebSocket, without waiting long for the reply."""
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
    return Unreachable(f"the connection broke{why}", sent=True)


def _end_sending(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_WR)


def _drop_bytes(parts: list[memoryview], count: int) -> None:
    """Remove `count` bytes from the front."""
    while count:
        if count < len(parts[0]):
            parts[0] = parts[0][count:]
            return
        count -= len(parts.pop(0))


@contextmanager
def _non_blocking(descriptor: int) -> Iterator[None]:
    """Pipes and sockets only: a terminal is shared with other processes, and files do not block for long."""
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
    """A larger pipe needs fewer system calls. Optional: Linux only, and may fail."""
    resize: int | None = getattr(fcntl, "F_SETPIPE_SZ", None)
    if resize is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with suppress(OSError):
            fcntl.fcntl(descriptor, resize, _PIPE_SIZE)
    yield
