"""Moves of reservations on PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.adapters.postgres.queue.message_queue import send_message
from gpudev.adapters.postgres.reservations.reservation_rows import write_changes
from gpudev.domain.errors import Stale
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import MessageCause
from gpudev.domain.reservations.changes import Change


class PostgresMoves:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def begin_move(self, change: Change, *, now: datetime) -> None:
        async with self._pool.transaction() as connection:
            await _write_change(connection, change, now)
            await connection.execute(
                "INSERT INTO reservation_moves (reservation_id, begun_at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                change.reservation_id,
                now,
            )
            await send_message(connection, change.reservation_id, MessageCause.CANCELLED)

    async def list_unfinished_moves(self) -> Sequence[ReservationId]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                "SELECT reservation_id FROM reservation_moves WHERE NOT done ORDER BY begun_at, reservation_id"
            )
        return [ReservationId(row["reservation_id"]) for row in rows]

    async def finish_move(self, left: ReservationId, change: Change | None, *, now: datetime) -> None:
        async with self._pool.transaction() as connection:
            is_ours = await connection.fetchval(
                "UPDATE reservation_moves SET done = TRUE WHERE reservation_id = $1 AND NOT done RETURNING TRUE", left
            )
            if not is_ours:
                return
            if change is not None:
                await _write_change(connection, change, now)
                await _copy_addons(connection, left, change.reservation_id, now)
            await connection.execute("DELETE FROM reservation_setups WHERE reservation_id = $1", left)
            await connection.execute("DELETE FROM jupyter_servers WHERE reservation_id = $1", left)


async def _write_change(connection: Connection, change: Change, now: datetime) -> None:
    if not await write_changes(connection, [change], now):
        raise Stale("the reservation has changed meanwhile; try again")


async def _copy_addons(connection: Connection, left: ReservationId, moved: ReservationId, now: datetime) -> None:
    """Addons that the moved reservation has already are kept."""
    has_addons = await connection.fetchval(
        """
        INSERT INTO interiors (reservation_id, wanted, due_at)
        SELECT $2, 1, $3 WHERE EXISTS (SELECT FROM reservation_users WHERE reservation_id = $1)
                            OR EXISTS (SELECT FROM jupyter_servers WHERE reservation_id = $1)
        ON CONFLICT (reservation_id) DO UPDATE SET wanted = interiors.wanted + 1, due_at = $3
        RETURNING TRUE
        """,
        left,
        moved,
        now,
    )
    if not has_addons:
        return
    await connection.execute(
        """
        INSERT INTO reservation_users (reservation_id, github_user, ssh_public_keys, added_by, added_at)
        SELECT $2, github_user, ssh_public_keys, added_by, added_at FROM reservation_users WHERE reservation_id = $1
        ON CONFLICT DO NOTHING
        """,
        left,
        moved,
    )
    await connection.execute(
        """
        INSERT INTO jupyter_servers (reservation_id, token, public_key, private_key, since)
        SELECT $2, token, public_key, private_key, $3 FROM jupyter_servers WHERE reservation_id = $1
        ON CONFLICT DO NOTHING
        """,
        left,
        moved,
        now,
    )
