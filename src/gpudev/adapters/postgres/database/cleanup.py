"""Deletes old rows: idempotency keys, API keys that have ended, sent notifications, secrets.

Reservations and their history are kept: they record what people did, and the forecast learns from them.
"""

from datetime import timedelta

from gpudev.adapters.postgres.database.pool import Pool

IDEMPOTENCY_KEY_RETENTION = timedelta(days=7)
ENDED_KEY_RETENTION = timedelta(days=30)
NOTIFICATION_RETENTION = timedelta(days=7)
UNFINISHED_MOVE_RETENTION = timedelta(days=7)
"""How long personalization and addons of an unfinished move are kept."""


async def delete_old_rows(pool: Pool) -> tuple[int, int]:
    """By the database's clock. Safe to run twice and in several processes. Returns how many idempotency keys and API
    keys were deleted."""
    async with pool.transaction() as connection:
        idempotency_keys = await connection.fetchval(
            """
            WITH gone AS (DELETE FROM idempotency_keys WHERE created_at < now() - $1::interval RETURNING 1)
            SELECT count(*) FROM gone
            """,
            IDEMPOTENCY_KEY_RETENTION,
        )
        api_keys = await connection.fetchval(
            """
            WITH gone AS (
                DELETE FROM api_keys
                WHERE (NOT is_active AND created_at < now() - $1::interval) OR expires_at < now() - $1::interval
                RETURNING 1
            )
            SELECT count(*) FROM gone
            """,
            ENDED_KEY_RETENTION,
        )
        await connection.execute(
            "DELETE FROM notifications WHERE state <> 'waiting' AND next_at < now() - $1::interval",
            NOTIFICATION_RETENTION,
        )
        # These secrets are useless when the dev server is gone.
        await connection.execute(
            """
            DELETE FROM jupyter_servers j USING reservations r
            WHERE r.reservation_id = j.reservation_id AND r.released_at IS NOT NULL
              AND NOT EXISTS (SELECT FROM reservation_moves m WHERE m.reservation_id = j.reservation_id
                              AND NOT m.done AND m.begun_at >= now() - $1::interval)
            """,
            UNFINISHED_MOVE_RETENTION,
        )
        # A move that is unfinished for so long is never finished.
        await connection.execute(
            """
            DELETE FROM reservation_setups s USING reservation_moves m
            WHERE m.reservation_id = s.reservation_id AND m.begun_at < now() - $1::interval
            """,
            UNFINISHED_MOVE_RETENTION,
        )
    return idempotency_keys, api_keys
