"""The loop of a worker: rounds that find and begin what is due, started by wake-ups and timers.

One task per key does the work (`gpudev.keyed_tasks`). Rows are authoritative: a wake-up only triggers a round, and a
later round finds again whatever failed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import structlog

from gpudev.domain.errors import GpuDevError
from gpudev.metrics.loop_watchdog import LoopWatchdog

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class Wakeup(asyncio.Event):
    async def take(self, timeout: timedelta) -> None:
        """Waits until it is set, at most this long, and clears it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                await self.wait()
        self.clear()


class WorkLoop:
    def __init__(
        self,
        name: str,
        run_round: Callable[[], Awaitable[timedelta]],
        *,
        rest: timedelta,
        pause: timedelta = timedelta(0),
    ) -> None:
        """`run_round` returns the time until the next round. `rest`: the time after a failure, or while this process
        may not act. `pause`: the minimum between rounds, so that wake-ups share one."""
        self._name = name
        self._run_round = run_round
        self._rest = rest
        self._pause = pause
        self._wakeup = Wakeup()

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self, may_act: Callable[[], bool] = lambda: True, watchdog: LoopWatchdog | None = None) -> None:
        """Until cancelled."""
        while True:
            if watchdog is not None:
                watchdog.beat(self._name)
            due_in = self._rest
            if may_act():
                due_in = await log_errors("worker", self._run_round(), self._rest, worker=self._name)
            await asyncio.sleep(self._pause.total_seconds())
            await self._wakeup.take(due_in)


async def log_errors(subject: str, work: Awaitable[_T], otherwise: _T, **fields: str) -> _T:
    """Logs everything that `work` raises; the rows show what is still to be done."""
    try:
        return await work
    except GpuDevError as error:
        log.warning(f"{subject}.failed", error=str(error), **fields)
    except Exception:
        log.exception(f"{subject}.broken", **fields)
    return otherwise
