"""Disks that are on no recorded volume, on PostgreSQL, and how one gets the volume that was its all along."""

from datetime import datetime
from uuid import uuid4

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.disks import disk_rows
from gpudev.domain.disks.operations import DiskState
from gpudev.ports.cloud import Volume

_WHERE_UNLINKED = """
    WHERE d.ebs_volume_id IS NULL AND d.saved_as IS NULL AND d.purged_at IS NULL
      AND NOT EXISTS (SELECT FROM disk_volumes v WHERE v.disk_id = d.disk_id)
    ORDER BY d.created_at, d.disk_id
"""
_LINK_VOLUME = """
    UPDATE disks d SET ebs_volume_id = $3, zone = $4, size_gb = $5
    WHERE d.disk_id = $1 AND d.xmin::text::bigint = $2 AND d.ebs_volume_id IS NULL
    RETURNING d.disk_id
"""
_INSERT_ADOPTION = """
    INSERT INTO disk_operations
        (operation_id, kind, user_id, disk_id, state, step, blocks, asked_at, finished_at, result)
    VALUES ($1, 'create', $2, $3, 'done', 'done', '{}', $4, $4, $5)
"""
_INSERT_VOLUME = """
    INSERT INTO disk_volumes (token, disk_id, operation_id, status, zone, size_gb, made_at, volume_id)
    VALUES ($1, $1, $2, 'kept', $3, $4, $5, $6)
"""


class PostgresUnlinkedDisks:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list_unlinked_disks(self) -> list[DiskState]:
        async with self._pool.acquire() as connection:
            return [
                disk_rows.disk_from_row(row) for row in await connection.fetch(disk_rows.SELECT_DISK + _WHERE_UNLINKED)
            ]

    async def adopt_volume(self, disk: DiskState, volume: Volume, zone: str, *, now: datetime) -> bool:
        """Recorded as ours: we made it, before such records were kept."""
        told = f"on volume {volume.volume_id}, the folder it has always been in"
        operation_id = uuid4()
        async with self._pool.transaction() as connection:
            linked = await connection.fetchval(
                _LINK_VOLUME, disk.disk_id, disk.mark, volume.volume_id, zone, volume.size_gb
            )
            if linked is None:
                return False
            await connection.execute(_INSERT_ADOPTION, operation_id, disk.user_id, disk.disk_id, now, told)
            await connection.execute(
                _INSERT_VOLUME, disk.disk_id, operation_id, zone, volume.size_gb, volume.created_at, volume.volume_id
            )
            await connection.execute(
                "INSERT INTO disk_events (disk_id, at, kind, message, by) VALUES ($1, $2, 'adopted', $3, 'processor')",
                disk.disk_id,
                now,
                told,
            )
        return True
