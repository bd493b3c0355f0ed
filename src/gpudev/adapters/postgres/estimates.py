"""What people were told beside what happened: forecasts learn from it, operators judge by it."""

from datetime import datetime

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.reservations import reservation_rows
from gpudev.domain.queue import EstimateOutcome, UsageSample


class PostgresEstimates:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list_usage_samples(self, per_type: int) -> list[UsageSample]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT t.gpu_type, r.used, r.could
                FROM gpu_types t, LATERAL (
                    SELECT reservation_ended - launched_at AS used, expires_at - launched_at AS could, reservation_ended
                    FROM reservations
                    WHERE gpu_type = t.gpu_type AND launched_at IS NOT NULL AND reservation_ended IS NOT NULL
                    ORDER BY reservation_ended DESC LIMIT $1
                ) r
                ORDER BY r.reservation_ended
                """,
                per_type,
            )
        return [UsageSample(row["gpu_type"], row["used"], row["could"]) for row in found]

    async def outcomes(self, per_type: int) -> list[EstimateOutcome]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT t.gpu_type, o.*
                FROM gpu_types t, LATERAL (
                    SELECT e.*, r.preparing_at FROM reservations r JOIN reservation_estimates e USING (reservation_id)
                    WHERE r.gpu_type = t.gpu_type AND r.preparing_at IS NOT NULL
                    ORDER BY r.preparing_at DESC, e.estimate_id DESC LIMIT $1
                ) o
                ORDER BY o.preparing_at, o.estimate_id
                """,
                per_type,
            )
        return [reservation_rows.outcome_from_row(row) for row in found]

    async def outcomes_since(self, since: datetime) -> list[EstimateOutcome]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT r.gpu_type, r.preparing_at, e.*
                FROM reservations r JOIN reservation_estimates e USING (reservation_id)
                WHERE r.preparing_at >= $1 OR r.status IN ('pending', 'queued')
                ORDER BY r.preparing_at NULLS LAST, e.estimate_id
                """,
                since,
            )
        return [reservation_rows.outcome_from_row(row) for row in found]
