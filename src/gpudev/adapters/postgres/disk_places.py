"""Where disks' volumes are, on PostgreSQL: for whoever plans many reservations at once."""

from collections.abc import Mapping, Sequence

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.domain.ids import DiskId
from gpudev.ports.disks import DiskLocation

# What a clone was made from does not count: that snapshot goes with the other disk.
_SELECT_LOCATIONS = """
    SELECT d.disk_id, d.zone, coalesce(s.status = 'completed' AND s.lacks IS NULL, false) AS is_saved
    FROM disks d LEFT JOIN disk_snapshots s ON s.snapshot_id = d.saved_as AND s.disk_id = d.disk_id
    WHERE d.disk_id = ANY($1::uuid[]) AND d.ebs_volume_id IS NOT NULL AND d.zone IS NOT NULL
"""


class PostgresDiskLocations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find_locations(self, disk_ids: Sequence[DiskId]) -> Mapping[DiskId, DiskLocation]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(_SELECT_LOCATIONS, disk_ids)
        return {DiskId(row["disk_id"]): DiskLocation(row["zone"], row["is_saved"]) for row in found}
