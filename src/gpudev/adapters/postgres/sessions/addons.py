"""Addons on PostgreSQL: collaborators and Jupyter. A trigger wakes the processor."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.adapters.postgres.reservations.reservation_rows import write_changes
from gpudev.domain.errors import LimitReached, Stale
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.changes import Change
from gpudev.domain.sessions.addons import (
    MAX_COLLABORATORS,
    Addons,
    Collaborator,
    JupyterAddon,
    JupyterSpec,
    JupyterState,
    JupyterStatus,
    jupyter_path,
)
from gpudev.ports.sessions import AddonResult, JupyterSecrets


class PostgresAddons:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find_addons(self, reservation_id: ReservationId) -> Addons | None:
        async with self._pool.acquire() as connection:
            return await _find_addons(connection, reservation_id)

    # --- for the API -----------------------------------------------------------------------------------------------

    async def add_users(self, change: Change, users: Sequence[Collaborator], *, now: datetime) -> Addons:
        async with self._pool.transaction() as connection:
            await _write_and_count_generation(connection, change, now)
            await connection.executemany(
                """
                INSERT INTO reservation_users (reservation_id, github_user, ssh_public_keys, added_by, added_at)
                VALUES ($1, $2, $3, $4, $5)
                ON CONFLICT (reservation_id, github_user) DO UPDATE SET ssh_public_keys = EXCLUDED.ssh_public_keys
                """,
                [
                    (change.reservation_id, user.github_user, list(user.ssh_public_keys), user.added_by, user.added_at)
                    for user in users
                ],
            )
            written = await _get_addons(connection, change.reservation_id)
            if len(written.collaborators) > MAX_COLLABORATORS:
                raise LimitReached(
                    f"a dev server can have at most {MAX_COLLABORATORS} collaborators; remove some first"
                )
            return written

    async def remove_user(self, change: Change, github_user: str, *, now: datetime) -> Addons:
        async with self._pool.transaction() as connection:
            await _write_and_count_generation(connection, change, now)
            await connection.execute(
                "DELETE FROM reservation_users WHERE reservation_id = $1 AND github_user = $2",
                change.reservation_id,
                github_user,
            )
            return await _get_addons(connection, change.reservation_id)

    async def enable_jupyter(self, change: Change, secrets: JupyterSecrets, *, now: datetime) -> Addons:
        async with self._pool.transaction() as connection:
            await _write_and_count_generation(connection, change, now)
            await connection.execute(
                """
                INSERT INTO jupyter_servers (reservation_id, token, public_key, private_key, since)
                VALUES ($1, $2, $3, $4, $5)
                ON CONFLICT (reservation_id) DO UPDATE
                SET token = EXCLUDED.token, public_key = EXCLUDED.public_key, private_key = EXCLUDED.private_key,
                    since = EXCLUDED.since, state = 'starting', reason = NULL
                """,
                change.reservation_id,
                secrets.token,
                secrets.public_key,
                secrets.private_key,
                now,
            )
            return await _get_addons(connection, change.reservation_id)

    async def disable_jupyter(self, change: Change, *, now: datetime) -> Addons:
        async with self._pool.transaction() as connection:
            await _write_and_count_generation(connection, change, now)
            await connection.execute("DELETE FROM jupyter_servers WHERE reservation_id = $1", change.reservation_id)
            return await _get_addons(connection, change.reservation_id)

    async def find_secrets(self, reservation_id: ReservationId) -> JupyterSecrets | None:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                "SELECT token, public_key, private_key FROM jupyter_servers WHERE reservation_id = $1", reservation_id
            )
        return None if row is None else JupyterSecrets(row["token"], row["public_key"], row["private_key"])

    # --- for the processor -----------------------------------------------------------------------------------------

    async def due(self, now: datetime, limit: int) -> Sequence[ReservationId]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                """
                SELECT i.reservation_id FROM interiors i JOIN reservations r USING (reservation_id)
                WHERE i.due_at <= $1 AND r.status = 'active' ORDER BY i.due_at LIMIT $2
                """,
                now,
                limit,
            )
        return [ReservationId(row["reservation_id"]) for row in rows]

    async def next_due(self) -> datetime | None:
        async with self._pool.acquire() as connection:
            moment: datetime | None = await connection.fetchval(
                """
                SELECT min(i.due_at) FROM interiors i JOIN reservations r USING (reservation_id)
                WHERE i.due_at < 'infinity' AND r.status = 'active'
                """
            )
        return moment

    async def record_result(self, result: AddonResult, *, now: datetime) -> None:
        async with self._pool.transaction() as connection:
            current = await connection.fetchrow(
                """
                UPDATE interiors
                SET trouble = $3, attempts = CASE WHEN $3::text IS NULL THEN 0 ELSE attempts + 1 END,
                    applied = CASE WHEN $3::text IS NULL THEN greatest(applied, $2) ELSE applied END,
                    due_at = CASE WHEN wanted > $2 OR applied > $2 THEN $5
                             ELSE coalesce($4::timestamptz, 'infinity') END
                WHERE reservation_id = $1
                RETURNING wanted
                """,
                result.reservation_id,
                result.generation,
                result.error,
                result.due_at,
                now,
            )
            if current is not None and current["wanted"] == result.generation and result.jupyter is not None:
                await connection.execute(
                    "UPDATE jupyter_servers SET state = $2, reason = $3 WHERE reservation_id = $1",
                    result.reservation_id,
                    result.jupyter.state.value,
                    result.jupyter.reason,
                )

    async def mark_due(self, reservation_id: ReservationId, *, now: datetime) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute("UPDATE interiors SET due_at = $2 WHERE reservation_id = $1", reservation_id, now)


async def _write_and_count_generation(connection: Connection, change: Change, now: datetime) -> None:
    if not await write_changes(connection, [change], now):
        raise Stale("the reservation has changed meanwhile; try again")
    await connection.execute(
        """
        INSERT INTO interiors (reservation_id, wanted, due_at) VALUES ($1, 1, $2)
        ON CONFLICT (reservation_id) DO UPDATE SET wanted = interiors.wanted + 1, due_at = $2
        """,
        change.reservation_id,
        now,
    )


async def _get_addons(connection: Connection, reservation_id: ReservationId) -> Addons:
    found = await _find_addons(connection, reservation_id)
    assert found is not None  # written in this transaction
    return found


async def _find_addons(connection: Connection, reservation_id: ReservationId) -> Addons | None:
    row = await connection.fetchrow(
        """
        SELECT i.*, j.token, j.public_key, j.state, j.reason
        FROM interiors i LEFT JOIN jupyter_servers j USING (reservation_id) WHERE i.reservation_id = $1
        """,
        reservation_id,
    )
    if row is None:
        return None
    users = await connection.fetch(
        "SELECT * FROM reservation_users WHERE reservation_id = $1 ORDER BY added_at, github_user", reservation_id
    )
    return Addons(
        reservation_id=reservation_id,
        generation=row["wanted"],
        observed_generation=row["applied"],
        attempts=row["attempts"],
        error=row["trouble"],
        collaborators=tuple(
            Collaborator(user["github_user"], tuple(user["ssh_public_keys"]), user["added_by"], user["added_at"])
            for user in users
        ),
        jupyter=_jupyter_from_row(reservation_id, row),
    )


def _jupyter_from_row(reservation_id: ReservationId, row: asyncpg.Record) -> JupyterAddon | None:
    if row["token"] is None:
        return None
    spec = JupyterSpec(row["token"], row["public_key"], jupyter_path(reservation_id))
    return JupyterAddon(spec, JupyterStatus(JupyterState(row["state"]), row["reason"]))
