"""What may be forgotten, once its time has passed: spent idempotency keys, keys that can never be used again, and what
was told outside.

Reservations and their history are kept: they are what people did, and the ETA learns from them.
"""

from datetime import timedelta

from gpudev.adapters.postgres.database.pool import Pool

IDEMPOTENCY_KEY_RETENTION = timedelta(days=7)
ENDED_KEY_RETENTION = timedelta(days=30)
NOTIFICATION_RETENTION = timedelta(days=7)
UNFINISHED_MOVE_RETENTION = timedelta(days=7)
"""What goes along with those that have left their place and did not go on elsewhere."""


async def delete_old_rows(pool: Pool) -> tuple[int, int]:
    """By the database's clock; safe to run twice and from several places. Answers how many of each went."""
    async with pool.transaction() as connection:
        requests = await connection.fetchval(
            """
            WITH gone AS (DELETE FROM idempotency_keys WHERE created_at < now() - $1::interval RETURNING 1)
            SELECT count(*) FROM gone
            """,
            IDEMPOTENCY_KEY_RETENTION,
        )
        keys = await connection.fetchval(
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
        # Its secrets open nothing any more once its dev server is gone.
        await connection.execute(
            """
            DELETE FROM jupyter_servers j USING reservations r
            WHERE r.reservation_id = j.reservation_id AND r.released_at IS NOT NULL
              AND NOT EXISTS (SELECT FROM reservation_moves m WHERE m.reservation_id = j.reservation_id
                              AND NOT m.done AND m.begun_at >= now() - $1::interval)
            """,
            UNFINISHED_MOVE_RETENTION,
        )
        # Nobody finishes a move that long after it was begun.
        await connection.execute(
            """
            DELETE FROM reservation_setups s USING reservation_moves m
            WHERE m.reservation_id = s.reservation_id AND m.begun_at < now() - $1::interval
            """,
            UNFINISHED_MOVE_RETENTION,
        )
    return requests, keys
