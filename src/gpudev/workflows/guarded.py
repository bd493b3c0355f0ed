"""Repeats a workflow's load, decide and write when another writer was faster."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from gpudev.domain.errors import Conflict

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ATTEMPTS = 5


def retry_on(
    conflict: type[Conflict],
) -> Callable[[Callable[_P, Awaitable[_T]]], Callable[_P, Coroutine[Any, Any, _T]]]:
    """Call it again from its start, since it reads anew; the last attempt's error is the caller's. Whatever was written
    before `conflict` was raised must be fine to write twice."""

    def decorate(attempt: Callable[_P, Awaitable[_T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
        @wraps(attempt)
        async def repeat(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return await attempt(*args, **kwargs)
                except conflict:
                    continue
            return await attempt(*args, **kwargs)

        return repeat

    return decorate
