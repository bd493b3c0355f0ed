"""Divides the event loop's time among sessions: none of them works longer than a moment at once.

Peers choose how their bytes are cut into frames and chunks, and a frame of one byte costs as much as a large one. So
work is bounded by time, not by bytes: when its slice is over, a session stops reading and waits until the event loop
has served everybody else. Sessions that waste time for long are ended (`TINY_PIECES`).
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpudev.http_edge.rate_limits import Rate

_T = TypeVar("_T")
_SLICE_SECONDS = 0.001
TINY_BYTES = 8
"""A frame or chunk with less payload is tiny: ssh packets and Jupyter's messages are larger."""
TINY_PIECES = Rate(burst=100_000, per_minute=60_000)
"""How many tiny frames or chunks a user may cause. Pings and progress bars stay far below."""
_REST_SECONDS = 0.004
_FIRST_SLICE_SECONDS = 0.00025
"""When data arrives, before the session has to queue. Short, because all sessions may get data at the same time."""


class WorkSlice:
    """Measures the work of one session since it last gave the event loop away."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends_at = monotonic() + _FIRST_SLICE_SECONDS

    def restart(self) -> None:
        """After waiting in the queue."""
        self._ends_at = self._monotonic() + _SLICE_SECONDS

    def is_over(self) -> bool:
        """To be asked after each frame or chunk."""
        return self._monotonic() >= self._ends_at

    async def exclude(self, reading: Awaitable[_T]) -> _T:
        """Awaits something whose time is not work of the session."""
        began = self._monotonic()
        result = await reading
        self._ends_at += self._monotonic() - began
        return result


class LoopShare:
    """Continues sessions that have more work, one in each iteration of the event loop. So however many there are,
    everybody else waits for one slice. Sessions that handle tiny pieces also rest between slices: together they use a
    fraction of the processor, because a process that is always busy is served late by the kernel's scheduler too."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._resting: deque[Callable[[], None]] = deque()

    def call_next(self, continue_work: Callable[[], None], *, is_wasteful: bool = False) -> None:
        """`is_wasteful`: the last slice handled tiny pieces."""
        queue = self._resting if is_wasteful else self._waiting
        queue.append(continue_work)
        if len(queue) == 1:
            self._schedule(queue)

    async def yield_loop(self, work: WorkSlice, *, is_wasteful: bool = False) -> None:
        """Returns at once while the slice is not over, otherwise with a new one."""
        if not work.is_over():
            return
        woken = asyncio.get_running_loop().create_future()
        self.call_next(lambda: None if woken.done() else woken.set_result(None), is_wasteful=is_wasteful)
        await woken
        work.restart()

    def _schedule(self, queue: deque[Callable[[], None]]) -> None:
        loop = asyncio.get_running_loop()
        if queue is self._resting:
            loop.call_later(_REST_SECONDS, self._run_next, queue)
        else:
            loop.call_soon(self._run_next, queue)

    def _run_next(self, queue: deque[Callable[[], None]]) -> None:
        continue_work = queue.popleft()
        if queue:
            self._schedule(queue)
        continue_work()
