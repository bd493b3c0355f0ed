"""Planning records on PostgreSQL: which requests the planner examined, and which orphans it found.

Examined requests are one small write from time to time, however many wait.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import PLANNING_LEASE
from gpudev.ports.leases import Lease
from gpudev.ports.queue import PlanningRecords

_MAX_PAUSE = timedelta(minutes=1)


class PostgresPlanningRecords:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def record_examined(self, lease: Lease, by_type: Mapping[str, Sequence[int]], now: datetime) -> None:
        async with self._pool.transaction() as connection:
            holds_lease = await connection.fetchval(
                """
                UPDATE leases
                SET looked_at = $4,
                    looking_since = CASE WHEN looked_at > $4::timestamptz - $5::interval THEN looking_since ELSE $4 END
                WHERE name = $1 AND holder = $2 AND epoch = $3 RETURNING true
                """,
                lease.name,
                lease.holder,
                lease.epoch,
                now,
                _MAX_PAUSE,
            )
            if holds_lease:
                await connection.executemany(
                    """
                    INSERT INTO queue_looks (gpu_type, looked_at, seqs) VALUES ($1, $2, $3)
                    ON CONFLICT (gpu_type) DO UPDATE SET looked_at = EXCLUDED.looked_at, seqs = EXCLUDED.seqs
                    """,
                    [(gpu_type, now, list(seqs)) for gpu_type, seqs in by_type.items()],
                )

    async def load_orphans(self) -> Mapping[ReservationId, datetime]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch("SELECT reservation_id, first_seen FROM orphans_seen")
        return {ReservationId(row["reservation_id"]): row["first_seen"] for row in found}

    async def save_orphans(self, first_observed: Mapping[ReservationId, datetime]) -> None:
        async with self._pool.transaction() as connection:
            await connection.execute(
                "DELETE FROM orphans_seen WHERE reservation_id <> ALL($1::uuid[])", list(first_observed)
            )
            await connection.executemany(
                "INSERT INTO orphans_seen (reservation_id, first_seen) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                list(first_observed.items()),
            )

    async def load_planning_records(self) -> PlanningRecords:
        async with self._pool.acquire() as connection:
            planner = await connection.fetchrow(
                "SELECT looked_at, looking_since FROM leases WHERE name = $1 AND expires_at > clock_timestamp()",
                PLANNING_LEASE,
            )
            found = await connection.fetch("SELECT gpu_type, looked_at, seqs FROM queue_looks")
        by_type = {row["gpu_type"]: (row["looked_at"], frozenset(row["seqs"])) for row in found}
        if planner is None:
            return PlanningRecords(None, None, by_type)
        return PlanningRecords(planner["looked_at"], planner["looking_since"], by_type)
