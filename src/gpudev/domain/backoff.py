"""Exponential backoff. Pure: randomness is passed in as a number."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import TypeVar

_T = TypeVar("_T", float, timedelta)
_MAX_GROWTHS = 30
"""More doublings would overflow a timedelta."""


def backoff(failures: int, first: _T, longest: _T | None = None, *, factor: float = 2.0, jitter: float = 1.0) -> _T:
    """The pause after this many failures in a row (the first is 1). `jitter`: a random factor, so that callers that
    failed together do not retry together."""
    pause = first * factor ** min(failures - 1, _MAX_GROWTHS)
    return (pause if longest is None else min(pause, longest)) * jitter


def growing_pauses(first: _T, longest: _T, *, factor: float = 2.0) -> Iterator[_T]:
    """An infinite series."""
    return (backoff(n, first, longest, factor=factor) for n in count(1))
