"""What tests read of disks in PostgreSQL, beside what the stores offer."""

from typing import Any

from gpudev.adapters.postgres.disks import disk_rows
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.disks.contents import Contents
from gpudev.domain.disks.operations import DiskState, RecordedSnapshotId
from gpudev.domain.ids import DiskId, UserId


async def disks_of(stores: Stores, user_id: UserId) -> list[DiskState]:
    """All that are not purged, the deleted ones too, by name and age."""
    async with stores.pool.acquire() as connection:
        rows = await connection.fetch(
            disk_rows.SELECT_DISK
            + "WHERE d.user_id = $1 AND d.purged_at IS NULL ORDER BY d.disk_name, d.created_at, d.disk_id",
            user_id,
        )
    return [disk_rows.disk_from_row(row) for row in rows]


async def disk_history(stores: Stores, disk_id: DiskId) -> list[dict[str, Any]]:
    """What happened to it, the oldest first."""
    async with stores.pool.acquire() as connection:
        rows = await connection.fetch(
            "SELECT at, kind, message, by, changes FROM disk_events WHERE disk_id = $1 ORDER BY event_id", disk_id
        )
    return [dict(row) for row in rows]


async def find_contents(stores: Stores, snapshot_id: RecordedSnapshotId) -> Contents | None:
    async with stores.pool.acquire() as connection:
        found = await connection.fetchval("SELECT contents FROM disk_contents WHERE snapshot_id = $1", snapshot_id)
    return None if found is None else Contents.from_json(found)
