"""Waiting for what other processes and tasks do: with short pauses and a generous deadline."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
Failure = str | Callable[[], object]
"""What to say if it does not happen, or how to find that out."""

NOT_IN_TIME = "it did not happen in time"


def eventually(claim: Callable[[], T | None], failure: Failure = NOT_IN_TIME, *, within: float = 60.0) -> T:
    """The claim's first result that is true."""
    deadline = time.monotonic() + within
    while not (found := claim()):
        assert time.monotonic() < deadline, _describe(failure)
        time.sleep(0.02)
    return found


async def eventually_async(
    claim: Callable[[], Awaitable[T | None] | T | None],
    failure: Failure = NOT_IN_TIME,
    *,
    within: float = 60.0,
    every: float = 0.02,
) -> T:
    """The same for a claim that may be awaited, while other tasks go on."""
    deadline = time.monotonic() + within
    while True:
        found = claim()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, _describe(failure)
        await asyncio.sleep(every)


async def until_it_succeeds(
    act: Callable[[], Awaitable[T]], error: type[Exception], *, within: float = 60.0, every: float = 0.05
) -> T:
    """The first result of what fails with this error at first."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await act()
        except error:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(every)


def _describe(failure: Failure) -> object:
    return failure() if callable(failure) else failure
