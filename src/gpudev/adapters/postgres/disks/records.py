"""Disk records on PostgreSQL for the disk reconciler, and adoption of volumes.

Each write adds an event to the history, and changes nothing if the row has changed since it was read. Nothing is
removed.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID, uuid4

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool, from_row
from gpudev.adapters.postgres.disks import disk_rows
from gpudev.domain.disks.operations import DiskState
from gpudev.domain.ids import UserId, new_disk_id
from gpudev.ports.cloud import Volume
from gpudev.ports.disks import DiskRecord, DiskWrite, DiskWriteResult, ImportDisk, UpdateDisk

_BATCH_SIZE = 200

_SELECT_RECORDS = """
    SELECT d.*, d.xmin::text::bigint AS mark, u.username, u.is_active AS user_is_active,
           EXISTS (SELECT FROM reservations r WHERE r.released_at IS NULL AND r.disk_id = d.disk_id)
           OR EXISTS (SELECT FROM reservations r WHERE r.released_at IS NULL AND r.reservation_id = d.reservation_id)
           AS is_held
    FROM disks d JOIN api_users u USING (user_id)
    ORDER BY d.created_at, d.disk_id
"""
_SELECT_RECORDED_CLOUD_IDS = """
    SELECT s.cloud_id FROM disk_snapshots s JOIN disks d USING (disk_id)
    WHERE s.cloud_id IS NOT NULL AND s.status <> 'removed' AND d.purged_at IS NULL
    UNION ALL
    SELECT v.volume_id FROM disk_volumes v JOIN disks d USING (disk_id)
    WHERE v.volume_id IS NOT NULL AND v.status = 'retired' AND d.purged_at IS NULL
"""
# The only columns that the reconciler may set.
_UPDATE_DISK = """
    UPDATE disks d
    SET (ebs_volume_id, zone, size_gb, in_use, reservation_id, snapshot_count, is_backing_up, last_snapshot_at)
      = (SELECT n.ebs_volume_id, n.zone, n.size_gb, n.in_use, n.reservation_id, n.snapshot_count, n.is_backing_up,
                n.last_snapshot_at
         FROM jsonb_populate_record(d, $3) n)
    WHERE d.disk_id = $1 AND d.xmin::text::bigint = $2
    RETURNING d.disk_id
"""
_RECONCILED_COLUMNS = frozenset(
    {
        "ebs_volume_id",
        "zone",
        "size_gb",
        "in_use",
        "reservation_id",
        "snapshot_count",
        "is_backing_up",
        "last_snapshot_at",
    }
)
_IMPORT_DISK = """
    INSERT INTO disks (disk_id, user_id, disk_name, created_at, ebs_volume_id, size_gb, in_use, snapshot_count,
                       is_backing_up, last_snapshot_at, zone)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    ON CONFLICT DO NOTHING RETURNING disk_id
"""


class PostgresDiskRecords:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list_records(self) -> list[DiskRecord]:
        async with self._pool.acquire() as connection:
            return [_record_from_row(row) for row in await connection.fetch(_SELECT_RECORDS)]

    async def list_owned_ids(self) -> AbstractSet[str]:
        async with self._pool.acquire() as connection:
            return {row["cloud_id"] for row in await connection.fetch(_SELECT_RECORDED_CLOUD_IDS)}

    async def write_records(self, writes: Sequence[DiskWrite], *, now: datetime, by: str) -> DiskWriteResult:
        """Many in one transaction. If the database rejects one, each is written separately, so that one does not stop
        the others."""
        done: list[DiskWrite] = []
        stale: list[DiskWrite] = []
        failed: list[tuple[DiskWrite, str]] = []
        for first in range(0, len(writes), _BATCH_SIZE):
            batch = writes[first : first + _BATCH_SIZE]
            try:
                results = await self._apply_all(batch, now, by)
            except asyncpg.PostgresError:
                for write in batch:
                    try:
                        (was_written,) = await self._apply_all([write], now, by)
                    except asyncpg.PostgresError as error:
                        failed.append((write, str(error)))
                    else:
                        (done if was_written else stale).append(write)
                continue
            for write, was_written in zip(batch, results, strict=True):
                (done if was_written else stale).append(write)
        return DiskWriteResult(done, stale, failed)

    async def _apply_all(self, writes: Sequence[DiskWrite], now: datetime, by: str) -> list[bool]:
        async with self._pool.transaction() as connection:
            return [await _apply_write(connection, write, now, by) for write in writes]


async def _apply_write(connection: Connection, write: DiskWrite, now: datetime, by: str) -> bool:
    match write:
        case ImportDisk():
            return await _import_disk(connection, write, now, by)
        case UpdateDisk():
            return await _update_disk(connection, write, now, by)
        case _:
            assert_never(write)


async def _import_disk(connection: Connection, write: ImportDisk, now: datetime, by: str) -> bool:
    user_id, is_new_user = await _ensure_owner(connection, write.username)
    fields = write.fields
    disk_id = await connection.fetchval(
        _IMPORT_DISK,
        new_disk_id(),
        user_id,
        write.disk_name,
        fields["created_at"],
        fields["ebs_volume_id"],
        fields["size_gb"],
        fields["in_use"],
        fields.get("snapshot_count", 0),
        fields.get("is_backing_up", False),
        fields.get("last_snapshot_at"),
        fields.get("zone"),
    )
    if disk_id is None:  # a request has created it; the next pass links the two
        return False
    owner = "; created an inactive user of that name" if is_new_user else ""
    message = f"imported volume {fields['ebs_volume_id']} of {write.username}{owner}"
    new = {column: (None, value) for column, value in fields.items()}
    await _insert_event(connection, disk_id, at=now, kind="imported", message=message, by=by, changes=new)
    return True


async def _ensure_owner(connection: Connection, username: str) -> tuple[UserId, bool]:
    """A tag contains a name and proves nothing, so a user who is created here is inactive."""
    created = await connection.fetchval(
        "INSERT INTO api_users (username, is_active) VALUES ($1, false) ON CONFLICT DO NOTHING RETURNING user_id",
        username,
    )
    if created is not None:
        return UserId(created), True
    found = await connection.fetchval("SELECT user_id FROM api_users WHERE username = $1", username)
    return UserId(found), False


async def _update_disk(connection: Connection, write: UpdateDisk, now: datetime, by: str) -> bool:
    unknown = write.changes.keys() - _RECONCILED_COLUMNS
    if unknown:
        raise ValueError(f"the reconciler may not set {', '.join(sorted(unknown))}")
    columns = {column: _jsonable(new) for column, (_, new) in write.changes.items()}
    if await connection.fetchval(_UPDATE_DISK, write.disk_id, write.mark, columns) is None:
        return False
    await _insert_event(
        connection, write.disk_id, at=now, kind="reconciled", message=write.reason, by=by, changes=write.changes
    )
    return True


async def _insert_event(
    connection: Connection,
    disk_id: UUID,
    *,
    at: datetime,
    kind: str,
    message: str,
    by: str,
    changes: Mapping[str, tuple[Any, Any]],
) -> None:
    json_changes = {column: [_jsonable(old), _jsonable(new)] for column, (old, new) in changes.items()}
    await connection.execute(
        "INSERT INTO disk_events (disk_id, at, kind, message, by, changes) VALUES ($1, $2, $3, $4, $5, $6)",
        disk_id,
        at,
        kind,
        message,
        by,
        json_changes,
    )


def _jsonable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _record_from_row(row: asyncpg.Record) -> DiskRecord:
    return from_row(DiskRecord, row, volume_id=row["ebs_volume_id"])


# Adoption: disks without a recorded volume, and the volumes they get

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
        """Record the volume as created by us: it is older than such records. False: the disk has changed."""
        result = f"on volume {volume.volume_id}, the folder it has always used"
        operation_id = uuid4()
        async with self._pool.transaction() as connection:
            linked = await connection.fetchval(
                _LINK_VOLUME, disk.disk_id, disk.mark, volume.volume_id, zone, volume.size_gb
            )
            if linked is None:
                return False
            await connection.execute(_INSERT_ADOPTION, operation_id, disk.user_id, disk.disk_id, now, result)
            await connection.execute(
                _INSERT_VOLUME, disk.disk_id, operation_id, zone, volume.size_gb, volume.created_at, volume.volume_id
            )
            await connection.execute(
                "INSERT INTO disk_events (disk_id, at, kind, message, by) VALUES ($1, $2, 'adopted', $3, 'processor')",
                disk.disk_id,
                now,
                result,
            )
        return True
