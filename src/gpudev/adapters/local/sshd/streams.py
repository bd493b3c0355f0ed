"""Streams between a child's descriptors and a channel, with bounded buffers.

Both directions have backpressure. A paused output stops reading, so that the child's writes block. A full input reports
it, so that the client's window closes.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable

CHUNK = 256 * 1024
_FULL = 256 * 1024
_DRAINED = 64 * 1024


class ChildOutput:
    """The child's output. It ends when no process holds the other end any more."""

    def __init__(self, fd: int, deliver: Callable[[bytes], None], ended: Callable[["ChildOutput"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._deliver = deliver
        self._ended = ended
        self._open = True
        self._paused = False
        self._bytes_until_close: int | None = None
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    def pause(self) -> None:
        if self._open:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if self._open:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)
            if self._bytes_until_close is not None:
                self._loop.call_soon(self._readable)

    def end_when_empty(self) -> None:
        """Deliver what has been written by now, and do not wait for processes that continue to write."""
        self._bytes_until_close = CHUNK  # more than any terminal holds
        self._loop.call_soon(self._readable)

    def close(self) -> None:
        """The child's next write fails with SIGPIPE, or on a terminal it gets a hangup."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _readable(self) -> None:
        if not self._open or self._paused:
            return
        data, at_end = self._read()
        if data:
            self._deliver(data)
        if self._bytes_until_close is not None:
            self._bytes_until_close -= len(data)
            at_end = at_end or not data or self._bytes_until_close <= 0
        if at_end and self._open:
            self.close()
            self._ended(self)
        elif self._bytes_until_close is not None:
            self._loop.call_soon(self._readable)  # a process that keeps it open may never write again

    def _read(self) -> tuple[bytes, bool]:
        """Read what is available, up to one chunk. Returns the data and whether the stream has ended.

        A terminal returns 4 KB at a time. These parts are joined, because every packet costs an encryption and a
        system call, whatever its size.
        """
        parts: list[bytes] = []
        size = 0
        at_end = False
        while size < CHUNK:
            try:
                part = os.read(self._fd, CHUNK - size)
            except BlockingIOError:
                break
            except OSError:  # EIO: no process has the terminal's other side any more
                part = b""
            if not part:
                at_end = True
                break
            parts.append(part)
            size += len(part)
        return (parts[0] if len(parts) == 1 else b"".join(parts)), at_end


class ChildInput:
    """The child's input. `flow(False)` pauses the sender, `flow(True)` resumes it."""

    def __init__(self, fd: int, flow: Callable[[bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._flow = flow
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._flowing = True
        self._at_end = False
        self._open = True
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> None:
        if not self._open or self._at_end:
            return
        was_idle = not self._waiting
        self._waiting.append(memoryview(data))
        self._size += len(data)
        if was_idle:
            self._write()
            if self._open and self._waiting:
                self._loop.add_writer(self._fd, self._write)
        self._update_flow()

    def finish(self) -> None:
        """No more input follows. The child reads the end after what is still buffered."""
        self._at_end = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._waiting.clear()
            self._size = 0
            self._update_flow()

    def _write(self) -> None:
        try:
            while self._waiting:
                head = self._waiting[0]
                written = os.write(self._fd, head)
                self._size -= written
                if written < len(head):
                    self._waiting[0] = head[written:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the child reads no more: drop the rest, as a pipe does
            self.close()
            return
        if not self._waiting:
            self._loop.remove_writer(self._fd)
            if self._at_end:
                self.close()
        self._update_flow()

    def _update_flow(self) -> None:
        if self._flowing and self._size > _FULL:
            self._flowing = False
            self._flow(False)
        elif not self._flowing and self._size <= _DRAINED:
            self._flowing = True
            self._flow(True)
