"""Retries a workflow (load, decide, write) after a stale write."""

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
    """Calls it again from the start, so that it reads again. The last attempt's error propagates. Writes before
    `conflict` must be idempotent."""

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
