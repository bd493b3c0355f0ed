"""Everything unreleased, kept in memory and brought up to date by asking only for what changed.

PostgreSQL's own row version (xmin) says what changed, whoever wrote it; a row is read in full once per write.
"""

from uuid import UUID

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.reservations import reservation_rows
from gpudev.domain.reservations.reservation import Reservation


class UnreleasedCache:
    """For one reader that looks often: the planning loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._row_versions: dict[UUID, int] = {}
        self._reservations: dict[UUID, Reservation] = {}

    async def refresh(self) -> list[Reservation]:
        """All that waits, runs, or still holds something, by arrival."""
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                "SELECT reservation_id, xmin::text::bigint AS mark FROM reservations WHERE released_at IS NULL"
            )
            marks: dict[UUID, int] = {row["reservation_id"]: row["mark"] for row in found}
            changed = [rid for rid, mark in marks.items() if self._row_versions.get(rid) != mark]
            fresh = (
                await connection.fetch(
                    reservation_rows.SELECT_RESERVATION
                    + "WHERE r.reservation_id = ANY($1::uuid[]) AND r.released_at IS NULL",
                    changed,
                )
                if changed
                else []
            )
        known = {rid: self._reservations[rid] for rid in marks if rid in self._reservations}
        known.update({row["reservation_id"]: reservation_rows.reservation_from_row(row) for row in fresh})
        # A row that was written again between the two statements carries an old mark: it is read once more next time.
        self._row_versions, self._reservations = marks, known
        return sorted(known.values(), key=lambda reservation: reservation.seq)
