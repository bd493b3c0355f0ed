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
from gpudev.settings import DatabaseSettings

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
UNREACHABLE = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, TimeoutError)
"""What asyncpg raises when the server is not there (or went away in the middle of a call)."""
_RELEASE_TIMEOUT_SECONDS = 1.0
SHUTTING_DOWN = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)


async def connect(database: DatabaseSettings, **kwargs: Any) -> asyncpg.Connection[asyncpg.Record]:
    """One connection outside the pool, for what must stay on it: listening, locks, migrations."""
    with translate_errors():
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(**_connect_arguments(database), **kwargs)
        await set_json_codecs(connection)
        return connection


class Pool:
    """The pool, opened lazily and again after the server was away; all failures to reach it are `Unavailable`.

    `patience`: so many seconds are waited for a connection, and as many for each answer, before the server counts as
    not there. One that hangs takes connections and never answers, so that nothing but time tells.
    """

    def __init__(self, database: DatabaseSettings, *, max_size: int = 8, timeout_seconds: float = 30.0) -> None:
        self._database = database
        self._max_size = max_size
        self._timeout_seconds = timeout_seconds
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._open_lock = asyncio.Lock()

    @property
    def database(self) -> DatabaseSettings:
        return self._database

    async def open(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            async with self._open_lock:
                if self._pool is None:
                    self._pool = await asyncpg.create_pool(
                        **_connect_arguments(self._database),
                        min_size=1,
                        max_size=self._max_size,
                        command_timeout=self._timeout_seconds,
                        init=set_json_codecs,
                        reset=_skip_reset,
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
        with translate_errors():
            async with asyncio.timeout(self._timeout_seconds):
                pool = await self.open()
                connection = await pool.acquire()
            try:
                yield connection
            finally:
                # A statement that was given up is waited for until the server confirms it. One that hangs confirms
                # nothing: the connection is then dropped, and whoever gave up has learned all there is to learn.
                with contextlib.suppress(TimeoutError):
                    await pool.release(connection, timeout=_RELEASE_TIMEOUT_SECONDS)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.acquire() as connection, connection.transaction():
            yield connection

    async def ping(self) -> None:
        async with self.acquire() as connection:
            await connection.fetchval("SELECT 1")


class translate_errors:  # noqa: N801 - reads as a phrase where it is used
    """`with translated(): …` turns "the server is not there" into Unavailable, and nothing else into anything."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Unavailable):
            return
        if isinstance(error, UNREACHABLE + SHUTTING_DOWN) or _is_closed_by_server(error):
            raise Unavailable(f"the database does not answer: {str(error) or type(error).__name__}") from error


def _is_closed_by_server(error: BaseException | None) -> bool:
    """The server has said that it ends this session, which nobody was using, and the library waits for more words of
    its (state 2) that never come. Who asks then is told of its own confusion."""
    return isinstance(error, asyncpg.InternalClientError) and "another operation (2)" in str(error)


async def set_json_codecs(connection: Connection) -> None:
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=_dump_json, decoder=orjson.loads)
    await connection.set_type_codec("json", schema="pg_catalog", encoder=_dump_json, decoder=orjson.loads)


async def _skip_reset(_connection: Connection) -> None:
    """Pooled connections carry no session state (no SET, LISTEN or session locks; those have connections of their
    own), so there is nothing to reset: half of all round trips are saved. Open transactions are ended anyway."""


def _connect_arguments(database: DatabaseSettings) -> dict[str, Any]:
    return {
        "host": database.host,
        "port": database.port,
        "user": database.user,
        "password": database.password,
        "database": database.database,
        "timeout": 10,
    }


_dump_json: Callable[[Any], str] = lambda value: orjson.dumps(value).decode()  # noqa: E731
