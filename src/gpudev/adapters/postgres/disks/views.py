"""Views of disks for their owners and for the planner, on PostgreSQL. It writes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.disks import disk_rows
from gpudev.domain.disks.contents import Contents
from gpudev.domain.disks.operations import RecordedSnapshotId
from gpudev.domain.ids import DiskId, UserId
from gpudev.ports.disks import ContentsTotals, DiskEvent, DiskLocation, DiskOverview, SnapshotContents

_WHERE_USER = "WHERE d.user_id = $1 AND d.purged_at IS NULL ORDER BY d.disk_name, d.created_at, d.disk_id"
# Counts our own records. The disk's row has the cloud's numbers, which include snapshots that others made.
_COUNT_SNAPSHOTS = """
    SELECT disk_id,
           count(*) FILTER (WHERE status IN ('pending', 'completed')) AS usable,
           max(created_at) FILTER (WHERE status IN ('pending', 'completed')) AS newest,
           bool_or(status IN ('beginning', 'pending')) AS is_backing_up
    FROM disk_snapshots WHERE disk_id = ANY($1::uuid[]) GROUP BY disk_id
"""
_LATEST_OPERATIONS = """
    SELECT DISTINCT ON (disk_id) * FROM disk_operations WHERE disk_id = ANY($1::uuid[])
    ORDER BY disk_id, finished_at IS NULL DESC, seq DESC
"""
_HISTORY = """
    SELECT * FROM (SELECT event_id, at, kind, message, by FROM disk_events WHERE disk_id = $1
                   ORDER BY event_id DESC LIMIT $2) last
    ORDER BY event_id
"""
# The newest snapshot is not always what is on the disk: the disk may have been restored from an older one.
_LISTING = """
    SELECT s.snapshot_id, coalesce(c.as_of, s.created_at) AS as_of, c.contents,
           $2::uuid IS NOT NULL OR s.snapshot_id IS NOT DISTINCT FROM d.saved_as OR NOT EXISTS (
               SELECT FROM disk_snapshots later WHERE later.disk_id = s.disk_id AND later.created_at > s.created_at
                  AND later.status IN ('pending', 'completed')) AS is_latest
    FROM disk_snapshots s JOIN disk_contents c USING (snapshot_id) JOIN disks d ON d.disk_id = s.disk_id
    WHERE s.disk_id = $1 AND ($2::uuid IS NULL OR s.snapshot_id = $2) AND s.status IN ('pending', 'completed')
    ORDER BY s.snapshot_id IS NOT DISTINCT FROM d.saved_as DESC, s.created_at DESC, s.snapshot_id LIMIT 1
"""
_TOTALS = """
    SELECT s.snapshot_id, (c.contents->>'files')::bigint AS files, (c.contents->>'size_bytes')::bigint AS size_bytes
    FROM disk_snapshots s JOIN disk_contents c USING (snapshot_id) WHERE s.disk_id = $1
"""


class PostgresDiskViews:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list_user_disks(self, user_id: UserId) -> list[DiskOverview]:
        return await self._load_overviews(_WHERE_USER, user_id)

    async def find_disk(self, disk_id: DiskId) -> DiskOverview | None:
        found = await self._load_overviews("WHERE d.disk_id = $1", disk_id)
        return found[0] if found else None

    async def list_disk_events(self, disk_id: DiskId, limit: int = 100) -> list[DiskEvent]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(_HISTORY, disk_id, limit)
        return [DiskEvent(row["at"], row["kind"], row["message"], row["by"]) for row in rows]

    async def find_snapshot_contents(
        self, disk_id: DiskId, snapshot_id: RecordedSnapshotId | None = None
    ) -> SnapshotContents | None:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(_LISTING, disk_id, snapshot_id)
        if row is None:
            return None
        contents = Contents.from_json(row["contents"])
        return SnapshotContents(RecordedSnapshotId(row["snapshot_id"]), row["as_of"], contents, row["is_latest"])

    async def load_contents_totals(self, disk_id: DiskId) -> dict[RecordedSnapshotId, ContentsTotals]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(_TOTALS, disk_id)
        return {RecordedSnapshotId(row["snapshot_id"]): ContentsTotals(row["files"], row["size_bytes"]) for row in rows}

    async def _load_overviews(self, where: str, argument: Any) -> list[DiskOverview]:
        async with (
            self._pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            disks = await connection.fetch(disk_rows.SELECT_DISK + where, argument)
            ids = [row["disk_id"] for row in disks]
            counts = {row["disk_id"]: row for row in await connection.fetch(_COUNT_SNAPSHOTS, ids)}
            latest = {row["disk_id"]: row for row in await connection.fetch(_LATEST_OPERATIONS, ids)}
        return [
            DiskOverview(
                state=disk_rows.disk_from_row(row),
                last_used=row["last_used"],
                snapshot_count=count["usable"] if (count := counts.get(row["disk_id"])) else 0,
                last_snapshot_at=count["newest"] if count else None,
                is_backing_up=count["is_backing_up"] if count else False,
                latest=disk_rows.operation_from_row(last) if (last := latest.get(row["disk_id"])) else None,
                is_attached=row["in_use"],
                volume_missing_since=row["volume_missing_since"],
            )
            for row in disks
        ]


# Zones of disks, for the planner, which needs many in one query

# The snapshot that a clone was made from does not count: it is removed with the other disk.
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
