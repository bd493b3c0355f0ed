"""A lock for each pass, held by a session of its own: it ends with whoever held it, however that ended."""

import contextlib
import os
import socket
import zlib
from collections.abc import AsyncIterator

from gpudev.adapters.postgres.database.pool import Connection, Pool, connect, translate_errors
from gpudev.ports.reconciling import ReconcilePass


class PostgresReconcileLocks:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @contextlib.asynccontextmanager
    async def hold(self, which: ReconcilePass, *, wait: bool) -> AsyncIterator[str | None]:
        name = f"gpu-dev {which} {socket.gethostname()}:{os.getpid()}"[:63]
        session = await connect(self._pool.database, server_settings={"application_name": name})
        try:
            with translate_errors():
                busy = await _take_lock(session, which, wait)
            yield busy
        finally:
            # No farewell that could take long: the server frees the lock as soon as the session is gone.
            session.terminate()


async def _take_lock(session: Connection, which: ReconcilePass, wait: bool) -> str | None:
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
    who = (holder or "").removeprefix(f"gpu-dev {which} ")
    return who or "another run"


def _reconcile_lock_key(which: ReconcilePass) -> int:
    return zlib.crc32(f"gpu-dev pass {which}".encode())
