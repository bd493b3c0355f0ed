"""How a command runs its asynchronous part: settings from the environment, stores opened and closed around it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpudev import settings
from gpudev.adapters.postgres.stores import Stores, open_stores

_T = TypeVar("_T")


def with_stores(act: Callable[[Stores], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        stores = open_stores(settings.load(), max_connections=2)
        try:
            return await act(stores)
        finally:
            await stores.close()

    return asyncio.run(run())
