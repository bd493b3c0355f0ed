"""What may be forgotten, once its time has passed: spent idempotency keys, keys that can never be used again, and what
was told outside.

Reservations and their history are kept: they are what people did, and the ETA learns from them.
"""

from datetime import timedelta

from gpudev.adapters.postgres.pool import Pool

IDEMPOTENCY_KEPT = timedelta(days=7)
ENDED_KEYS_KEPT = timedelta(days=30)
NOTIFICATIONS_KEPT = timedelta(days=7)


async def forget_what_is_over(pool: Pool) -> tuple[int, int]:
    """By the database's clock; safe to run twice and from several places. Answers how many of each went."""
    async with pool.transaction() as connection:
        requests = await connection.fetchval(
            """
            WITH gone AS (DELETE FROM idempotency_keys WHERE created_at < now() - $1::interval RETURNING 1)
            SELECT count(*) FROM gone
            """,
            IDEMPOTENCY_KEPT,
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
            ENDED_KEYS_KEPT,
        )
        await connection.execute(
            "DELETE FROM notifications WHERE state <> 'waiting' AND next_at < now() - $1::interval", NOTIFICATIONS_KEPT
        )
        # Its secrets open nothing any more once its dev server is gone.
        await connection.execute(
            """
            DELETE FROM jupyter_servers j USING reservations r
            WHERE r.reservation_id = j.reservation_id AND r.released_at IS NOT NULL
            """
        )
    return requests, keys
