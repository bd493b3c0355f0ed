"""Connections to PostgreSQL: how they are opened, what they can encode, and what their failures mean.

How the pool is used: one `acquire` per store call, never held across anything that waits for the outside, and
never two at once in one task (a pool that is exhausted by nested acquires waits for itself).
"""

from __future__ import annotations  # asyncpg's classes take parameters for the type checker only

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from gpudev.domain.errors import Unavailable
from gpudev.settings import Database

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
UNREACHABLE = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, TimeoutError)
"""What asyncpg raises when the server is not there (or went away in the middle of a call)."""
_FAREWELL_SECONDS = 1.0
SHUTTING_DOWN = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)


async def connect(database: Database, **kwargs: Any) -> asyncpg.Connection[asyncpg.Record]:
    """One connection outside the pool, for what must stay on it: listening, locks, migrations."""
    with translated():
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(**_address(database), **kwargs)
        await prepare(connection)
        return connection


class Pool:
    """The pool, opened lazily and again after the server was away; all failures to reach it are `Unavailable`.

    `patience`: so many seconds are waited for a connection, and as many for each answer, before the server counts as
    not there. One that hangs takes connections and never answers, so that nothing but time tells.
    """

    def __init__(self, database: Database, *, max_size: int = 8, patience: float = 30.0) -> None:
        self._database = database
        self._max_size = max_size
        self._patience = patience
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._opening = asyncio.Lock()

    @property
    def database(self) -> Database:
        return self._database

    async def open(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await asyncpg.create_pool(
                        **_address(self._database),
                        min_size=1,
                        max_size=self._max_size,
                        command_timeout=self._patience,
                        init=prepare,
                        reset=_leave_as_it_is,
                    )
        return self._pool

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(5):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        with translated():
            async with asyncio.timeout(self._patience):
                pool = await self.open()
                connection = await pool.acquire()
            try:
                yield connection
            finally:
                # A statement that was given up is waited for until the server confirms it. One that hangs confirms
                # nothing: the connection is then dropped, and whoever gave up has learned all there is to learn.
                with contextlib.suppress(TimeoutError):
                    await pool.release(connection, timeout=_FAREWELL_SECONDS)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.acquire() as connection, connection.transaction():
            yield connection

    async def ping(self) -> None:
        async with self.acquire() as connection:
            await connection.fetchval("SELECT 1")


class translated:  # noqa: N801 - reads as a phrase where it is used
    """`with translated(): …` turns "the server is not there" into Unavailable, and nothing else into anything."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Unavailable):
            return
        if isinstance(error, UNREACHABLE + SHUTTING_DOWN) or _was_said_goodbye_to(error):
            raise Unavailable(f"the database does not answer: {str(error) or type(error).__name__}") from error


def _was_said_goodbye_to(error: BaseException | None) -> bool:
    """The server has said that it ends this session, which nobody was using, and the library waits for more words of
    its (state 2) that never come. Who asks then is told of its own confusion."""
    return isinstance(error, asyncpg.InternalClientError) and "another operation (2)" in str(error)


async def prepare(connection: Connection) -> None:
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=_dump, decoder=orjson.loads)
    await connection.set_type_codec("json", schema="pg_catalog", encoder=_dump, decoder=orjson.loads)


async def _leave_as_it_is(_connection: Connection) -> None:
    """Pooled connections carry no session state (no SET, LISTEN or session locks; those have connections of their
    own), so there is nothing to reset: half of all round trips are saved. Open transactions are ended anyway."""


def _address(database: Database) -> dict[str, Any]:
    return {
        "host": database.host,
        "port": database.port,
        "user": database.user,
        "password": database.password,
        "database": database.database,
        "timeout": 10,
    }


_dump: Callable[[Any], str] = lambda value: orjson.dumps(value).decode()  # noqa: E731
