"""Runs the asynchronous part of a command with settings loaded and stores opened."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gpudev import settings
from gpudev.embedded.layout import Layout
from gpudev.embedded.system import open_postgres
from gpudev.settings import Settings

if TYPE_CHECKING:
    from gpudev.adapters.postgres.stores import Stores

_T = TypeVar("_T")


def load_server_settings() -> Settings:
    """From the environment; without a configured database, the embedded one of this machine, if there is one."""
    chosen = settings.load_settings()
    layout = Layout(chosen.state_dir)
    if "POSTGRES_HOST" in os.environ or not layout.postgres_data.exists():
        return chosen
    chosen = settings.load_settings(settings.on_this_machine(os.environ))
    return replace(chosen, database=open_postgres(layout).database_settings())


def run_with_stores(act: "Callable[[Stores], Awaitable[_T]]") -> _T:
    import asyncio

    from gpudev.adapters.postgres.stores import open_stores  # `up` and `migrate` do not need it

    async def run() -> _T:
        stores = open_stores(load_server_settings(), max_connections=2)
        try:
            return await act(stores)
        finally:
            await stores.close()

    return asyncio.run(run())
