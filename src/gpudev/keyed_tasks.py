"""Asyncio tasks by key: one per key, many keys concurrently, up to a limit."""

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
        """`on_end` is called when a task has ended and its key is free."""
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
        """The key's running task, or a new one. `after`: a task that must end first."""
        task = self._tasks.get(key)
        if task is not None:
            self._requested_again.add(key)
            return task
        task = self._tasks[key] = asyncio.create_task(self._run(work, after), name=f"{self._name} {key}")
        task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def was_requested_again(self, key: _K) -> bool:
        """Whether `start` was called again since the task began: it may have missed the reason."""
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
        if after is not None:  # before taking a slot: waiting tasks must not exhaust them
            await asyncio.wait({after})
        async with self._slots:
            return await work()

    def _ended(self, key: _K, task: "asyncio.Task[_T]") -> None:
        del self._tasks[key]
        self._requested_again.discard(key)
        self._on_end(key, task)
