"""Carrying bytes between a child's descriptors and a channel, without ever holding more than a little of them.

Both directions push back: an outlet that is paused stops reading, so that the child's own writes block; an inlet that
is full says so, so that the client's window closes.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable

CHUNK = 256 * 1024
_FULL = 256 * 1024
_DRAINED = 64 * 1024


class ChildOutput:
    """What the child writes. Ends by itself when nobody can write to it any more."""

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
        """Deliver what has been written by now; whoever goes on writing is not waited for."""
        self._bytes_until_close = CHUNK  # more than any terminal holds
        self._loop.call_soon(self._readable)

    def close(self) -> None:
        """The child's next write fails: SIGPIPE, or a hangup where it is a terminal."""
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

    def _read(self) -> tuple[bytes, bool]:
        """Whatever is there, up to a chunk. A terminal hands out 4 KB at a time: those are put together,
        because every packet costs an encryption and a system call, however small."""
        parts: list[bytes] = []
        size = 0
        at_end = False
        while size < CHUNK:
            try:
                part = os.read(self._fd, CHUNK - size)
            except BlockingIOError:
                break
            except OSError:  # EIO: the last holder of the terminal's other side has gone
                part = b""
            if not part:
                at_end = True
                break
            parts.append(part)
            size += len(part)
        return (parts[0] if len(parts) == 1 else b"".join(parts)), at_end


class ChildInput:
    """What the child reads. `flow(False)` asks the sender to stop, `flow(True)` to go on."""

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
        """No more will come; the end follows what is still waiting."""
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
        except OSError:  # the child reads no more: what it will never read is dropped, as a pipe does
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
