"""One task per key, many keys at once, and no more at work than allowed. Knows nothing of what they do."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")


def _ignore_end(_key: object, _task: object) -> None:
    return None


class KeyedTasks(Generic[_K, _T]):
    def __init__(
        self,
        name: str,
        at_once: int = sys.maxsize,
        on_end: "Callable[[_K, asyncio.Task[_T]], None]" = _ignore_end,
    ) -> None:
        """`on_end` is called when a task has ended and its key is free again."""
        self._name = name
        self._slots = asyncio.Semaphore(at_once)
        self._on_end = on_end
        self._tasks: dict[_K, asyncio.Task[_T]] = {}
        self._requested_again: set[_K] = set()

    def __contains__(self, key: _K) -> bool:
        return key in self._tasks

    def find_task(self, key: _K) -> "asyncio.Task[_T] | None":
        return self._tasks.get(key)

    def start(
        self, key: _K, work: Callable[[], Awaitable[_T]], *, after: "asyncio.Task[_T] | None" = None
    ) -> "asyncio.Task[_T]":
        """The task of this key: the one that runs already, or a new one. `after`: not before that one has ended."""
        task = self._tasks.get(key)
        if task is not None:
            self._requested_again.add(key)
            return task
        task = self._tasks[key] = asyncio.create_task(self._run(work, after), name=f"{self._name} {key}")
        task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def was_requested_again(self, key: _K) -> bool:
        """Whether somebody wanted this task since it began: it may not have seen why."""
        return key in self._requested_again

    def cancel_all_but(self, keys: Collection[_K]) -> None:
        for key in self._tasks.keys() - keys:
            self._tasks[key].cancel()

    async def wait_idle(self) -> None:
        """Until no task is left (tests, a clean stop)."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Callable[[], Awaitable[_T]], after: "asyncio.Task[_T] | None") -> _T:
        if after is not None:  # without a slot, or those that wait could take them all
            await asyncio.wait({after})
        async with self._slots:
            return await work()

    def _ended(self, key: _K, task: "asyncio.Task[_T]") -> None:
        del self._tasks[key]
        self._requested_again.discard(key)
        self._on_end(key, task)
