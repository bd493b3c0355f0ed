"""Queued notifications on PostgreSQL. A trigger queues each with its event."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.reservations import reservation_rows
from gpudev.domain.ids import ReservationId
from gpudev.domain.notifications import Recipient
from gpudev.ports.notifications import QueuedNotification


class PostgresNotifications:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def publish_targets(self, targets: Collection[str], kinds: Sequence[str]) -> None:
        async with self._pool.transaction() as connection:
            await connection.execute("DELETE FROM notify_targets WHERE target <> ALL ($1::text[])", list(targets))
            await connection.execute(
                """
                INSERT INTO notify_targets (target, kinds) SELECT t, $2::text[] FROM unnest($1::text[]) t
                ON CONFLICT (target) DO UPDATE SET kinds = EXCLUDED.kinds
                """,
                list(targets),
                list(kinds),
            )
            await connection.execute(
                """
                UPDATE notifications SET state = 'given_up', error = 'the target was removed from the settings'
                WHERE state = 'waiting' AND target <> ALL ($1::text[])
                """,
                list(targets),
            )

    async def claim(self, now: datetime, lease: timedelta, limit: int) -> list[QueuedNotification]:
        async with self._pool.transaction() as connection:
            claimed = await connection.fetch(
                """
                WITH due AS (
                    SELECT notification_id FROM notifications WHERE state = 'waiting' AND next_at <= $1
                    ORDER BY next_at, notification_id LIMIT $3 FOR UPDATE SKIP LOCKED
                )
                UPDATE notifications n SET attempts = n.attempts + 1, next_at = $1 + $2
                FROM due WHERE n.notification_id = due.notification_id
                RETURNING n.notification_id, n.target, n.attempts, n.event_id
                """,
                now,
                lease,
                limit,
            )
            if not claimed:
                return []
            events = await connection.fetch(
                "SELECT * FROM reservation_events WHERE event_id = ANY ($1::bigint[])",
                [row["event_id"] for row in claimed],
            )
            found = await connection.fetch(
                reservation_rows.SELECT_RESERVATION + "WHERE r.reservation_id = ANY ($1::uuid[])",
                [row["reservation_id"] for row in events],
            )
            emails = await connection.fetch(
                "SELECT user_id, email FROM api_users WHERE user_id = ANY ($1::int[])",
                [row["user_id"] for row in found],
            )
        by_event = {row["event_id"]: reservation_rows.event_from_row(row) for row in events}
        by_id = {ReservationId(row["reservation_id"]): reservation_rows.reservation_from_row(row) for row in found}
        email_of = {row["user_id"]: row["email"] for row in emails}
        queued = []
        for row in sorted(claimed, key=lambda row: int(row["notification_id"])):
            event = by_event[row["event_id"]]
            reservation = by_id[event.reservation_id]
            recipient = Recipient(reservation.username, email_of.get(reservation.user_id))
            queued.append(
                QueuedNotification(
                    row["notification_id"], row["target"], row["attempts"], event, reservation, recipient
                )
            )
        return queued

    async def finish_notification(self, notification_id: int, state: str, error: str | None = None) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(
                "UPDATE notifications SET state = $2, error = $3 WHERE notification_id = $1 AND state = 'waiting'",
                notification_id,
                state,
                error,
            )

    async def postpone(self, notification_id: int, until: datetime, error: str) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(
                "UPDATE notifications SET next_at = $2, error = $3 WHERE notification_id = $1 AND state = 'waiting'",
                notification_id,
                until,
                error,
            )
