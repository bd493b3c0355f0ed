"""Connections to PostgreSQL: pool, JSON codecs, translation of errors, and rows as values.

Rules of use: one `acquire` per store call, never held while waiting for anything else, and never two at a time in one
task (a pool that is exhausted by nested acquires waits for itself).
"""

from __future__ import annotations  # asyncpg's classes take parameters for the type checker only

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from gpudev.domain.errors import Unavailable
from gpudev.settings import DatabaseSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
UNREACHABLE = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, TimeoutError)
"""Raised by asyncpg when the server cannot be reached, or is lost during a call."""
_RELEASE_TIMEOUT_SECONDS = 1.0
SHUTTING_DOWN = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)
_CANNOT_WRITE: tuple[tuple[type[asyncpg.PostgresError], str], ...] = (
    (asyncpg.DiskFullError, "cannot write, its disk is full"),
    (asyncpg.ReadOnlySQLTransactionError, "is read-only"),
    (asyncpg.OutOfMemoryError, "is out of memory"),
    (asyncpg.InsufficientResourcesError, "lacks resources"),
    (asyncpg.PostgresIOError, "cannot use its disk"),
)
"""SQLSTATE class 53 and its like: the server answers, but not everything works until an operator acts. The first match
counts."""
_SPILL_ROWS = 16_000
"""Some 256 kB, more than `work_mem` in `check_writable`."""


async def connect(database: DatabaseSettings, **kwargs: Any) -> asyncpg.Connection[asyncpg.Record]:
    """One connection outside the pool, for session state: LISTEN, locks, migrations."""
    with translate_errors():
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(**_connect_arguments(database), **kwargs)
        await set_json_codecs(connection)
        return connection


class Pool:
    """The pool. It opens lazily, and again after the server was down. Failures to reach the server are `Unavailable`.

    `timeout_seconds`: how long to wait for a connection, and for each answer, before the server counts as down. A
    server that hangs accepts connections and never answers, so only a timeout detects it.
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
                # After a cancelled statement, asyncpg waits until the server confirms it. A server that hangs confirms
                # nothing: the connection is dropped then. The caller has its error already.
                with contextlib.suppress(TimeoutError):
                    await pool.release(connection, timeout=_RELEASE_TIMEOUT_SECONDS)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.acquire() as connection, connection.transaction():
            yield connection

    async def ping(self) -> None:
        async with self.acquire() as connection:
            await connection.fetchval("SELECT 1")

    async def check_writable(self) -> None:
        """Raises Unavailable with the reason.

        A small write to a table says nothing, because its page and the log may have room left on a full disk. A result
        that does not fit into memory needs new room on the disk, for a moment, and leaves nothing behind.
        """
        async with self.transaction() as connection:
            await connection.execute("SET LOCAL work_mem = '64kB'")
            is_read_only = await connection.fetchval(
                "SELECT current_setting('transaction_read_only')::bool FROM generate_series(1, $1::int) LIMIT 1",
                _SPILL_ROWS,
            )
        if is_read_only:
            raise Unavailable("the database is read-only")


class translate_errors:  # noqa: N801 - used like a function
    """`with translate_errors(): …` raises Unavailable when the server cannot be reached, or lacks what it needs to do
    its work, such as space on its disk. Other errors pass."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Unavailable):
            return
        if (outage := describe_outage(error)) is not None:
            raise Unavailable(f"the database {outage}: {str(error) or type(error).__name__}") from error


def describe_outage(error: BaseException | None) -> str | None:
    """What is wrong with the database. None: nothing, or it is an error of the caller."""
    if isinstance(error, UNREACHABLE + SHUTTING_DOWN) or _is_closed_by_server(error):
        return "does not answer"
    return next((outage for kind, outage in _CANNOT_WRITE if isinstance(error, kind)), None)


def _is_closed_by_server(error: BaseException | None) -> bool:
    """The server ended this idle session, and asyncpg still waits for the rest of its message (state 2).

    asyncpg then reports an internal error to the next caller.
    """
    return isinstance(error, asyncpg.InternalClientError) and "another operation (2)" in str(error)


async def set_json_codecs(connection: Connection) -> None:
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=_dump_json, decoder=orjson.loads)
    await connection.set_type_codec("json", schema="pg_catalog", encoder=_dump_json, decoder=orjson.loads)


async def _skip_reset(_connection: Connection) -> None:
    """Does nothing, which saves half of all round trips.

    Pooled connections have no session state: SET, LISTEN and session locks use connections of their own. asyncpg ends
    open transactions anyway.
    """


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


def from_row(kind: type[_T], row: asyncpg.Record, /, **converted: Any) -> _T:
    """Takes each field from the column of the same name. `converted`: fields that are not simply a column."""
    same = {name: row[name] for name in _same_columns(kind, tuple(converted))}
    return kind(**same, **converted)


@cache
def _same_columns(kind: type[DataclassInstance], converted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in converted)
