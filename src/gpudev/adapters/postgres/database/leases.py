"""The planning lease, and the locks of reconcile passes.

A lease is a row with holder and epoch. The holder renews it by heartbeat and holds a session lock. The session lock
shows a crash immediately: the server drops it with the connection. The heartbeat covers a holder that hangs with its
connection open. The epoch makes writes of a former holder harmless.
"""

from __future__ import annotations  # asyncpg's classes take parameters for the type checker only

import asyncio
import contextlib
import os
import socket
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg

from gpudev.adapters.postgres.database.pool import UNREACHABLE, Connection, Pool, connect, translate_errors
from gpudev.domain.errors import LeaseLost
from gpudev.ports.leases import Lease, ReconcilePass


class PostgresLeases:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._session: asyncpg.Connection[asyncpg.Record] | None = None
        self._locked: set[str] = set()

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> Lease | None:
        with translate_errors():
            session = await self._own_session()
            if name not in self._locked and await session.fetchval(
                "SELECT pg_try_advisory_lock($1)", _lease_lock_key(name)
            ):
                self._locked.add(name)
            epoch = await session.fetchval(
                """
                INSERT INTO leases AS l (name, holder, epoch, expires_at)
                VALUES ($1, $2, 1, clock_timestamp() + $3)
                ON CONFLICT (name) DO UPDATE
                SET holder = EXCLUDED.holder, expires_at = EXCLUDED.expires_at,
                    epoch = l.epoch + CASE WHEN l.holder = EXCLUDED.holder THEN 0 ELSE 1 END
                WHERE l.holder = EXCLUDED.holder OR $4 OR l.expires_at < clock_timestamp()
                RETURNING epoch
                """,
                name,
                holder,
                ttl,
                name in self._locked,
            )
        return None if epoch is None else Lease(name, holder, epoch)

    async def release(self, lease: Lease) -> None:
        """The next holder can take it immediately."""
        async with self._pool.acquire() as connection:
            await connection.execute(
                "UPDATE leases SET expires_at = '-infinity' WHERE name = $1 AND holder = $2 AND epoch = $3",
                lease.name,
                lease.holder,
                lease.epoch,
            )
        await self.close()

    async def is_held(self, name: str) -> bool:
        """Whether any holder's heartbeat is recent."""
        async with self._pool.acquire() as connection:
            return bool(
                await connection.fetchval(
                    "SELECT EXISTS (SELECT FROM leases WHERE name = $1 AND expires_at > clock_timestamp())", name
                )
            )

    async def close(self) -> None:
        session, self._session = self._session, None
        self._locked.clear()
        if session is not None and not session.is_closed():
            try:
                async with asyncio.timeout(2):
                    await session.close()
            except UNREACHABLE:
                session.terminate()

    async def _own_session(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._session is None or self._session.is_closed():
            self._locked.clear()
            self._session = await connect(self._pool.database, command_timeout=5)
        return self._session


async def check_epoch(connection: Connection, lease: Lease) -> None:
    """Lock the lease's row until the commit of the caller's transaction. Raises LeaseLost if another holds it."""
    row = await connection.fetchrow("SELECT holder, epoch FROM leases WHERE name = $1 FOR SHARE", lease.name)
    if row is None or (row["holder"], row["epoch"]) != (lease.holder, lease.epoch):
        raise LeaseLost(f"the {lease.name} lease is held by another processor now")


def _lease_lock_key(name: str) -> int:
    return zlib.crc32(f"gpu-dev lease {name}".encode())


class PostgresReconcileLocks:
    """One lock per pass, held by a session of its own. So it ends with the process that holds it, even in a crash."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @contextlib.asynccontextmanager
    async def hold(self, which: ReconcilePass, *, wait: bool) -> AsyncIterator[str | None]:
        name = f"gpu-dev {which} {socket.gethostname()}:{os.getpid()}"[:63]
        session = await connect(self._pool.database, server_settings={"application_name": name})
        try:
            with translate_errors():
                other_holder = await _take_lock(session, which, wait)
            yield other_holder
        finally:
            # Without an orderly close, which may take long: the server frees the lock when the session is gone.
            session.terminate()


async def _take_lock(session: Connection, which: ReconcilePass, wait: bool) -> str | None:
    """None: the lock was taken. Else the process that holds it."""
    key = _reconcile_lock_key(which)
    if wait:
        await session.execute("SELECT pg_advisory_lock($1)", key)
        return None
    if await session.fetchval("SELECT pg_try_advisory_lock($1)", key):
        return None
    holder = await session.fetchval(
        """
        SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.locktype = 'advisory' AND l.granted AND (l.classid::bigint << 32) | l.objid::bigint = $1
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        """,
        key,
    )
    return (holder or "").removeprefix(f"gpu-dev {which} ") or "another run"


def _reconcile_lock_key(which: ReconcilePass) -> int:
    return zlib.crc32(f"gpu-dev pass {which}".encode())
