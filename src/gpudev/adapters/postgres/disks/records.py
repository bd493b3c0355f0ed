"""Disk records on PostgreSQL for the disk reconciler, and adoption of volumes.

Each write adds an event to the history, and changes nothing if the row has changed since it was read. Nothing is
removed.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID, uuid4, uuid5

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool, from_row
from gpudev.adapters.postgres.disks import disk_rows
from gpudev.domain.disks.operations import DiskState, SnapshotReason, SnapshotStatus
from gpudev.domain.ids import UserId, new_disk_id
from gpudev.ports.cloud import Snapshot, SnapshotState, Volume
from gpudev.ports.disks import DiskRecord, DiskWrite, DiskWriteResult, ImportDisk, ImportSnapshots, UpdateDisk

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
    SET (ebs_volume_id, zone, size_gb, in_use, reservation_id, snapshot_count, is_backing_up, last_snapshot_at,
         volume_missing_since)
      = (SELECT n.ebs_volume_id, n.zone, n.size_gb, n.in_use, n.reservation_id, n.snapshot_count, n.is_backing_up,
                n.last_snapshot_at, n.volume_missing_since
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
        "volume_missing_since",
    }
)
_IMPORT_DISK = """
    INSERT INTO disks (disk_id, user_id, disk_name, created_at, ebs_volume_id, size_gb, in_use, snapshot_count,
                       is_backing_up, last_snapshot_at, zone)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    ON CONFLICT DO NOTHING RETURNING disk_id
"""
# Nothing if the snapshot is recorded by now, also as another disk's.
_IMPORT_SNAPSHOT = """
    INSERT INTO disk_snapshots (snapshot_id, disk_id, volume_id, why, status, created_at, cloud_id, size_gb)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT DO NOTHING RETURNING cloud_id
"""
_SNAPSHOT_NAMESPACE = UUID("0f5d3f0e-7c0c-4f6e-9f0b-6f6f7a1c2d84")
"""Namespace of the ids of imported snapshots."""


class PostgresDiskRecords:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list_records(self) -> list[DiskRecord]:
        async with self._pool.acquire() as connection:
            return [_record_from_row(row) for row in await connection.fetch(_SELECT_RECORDS)]

    async def list_owned_ids(self) -> AbstractSet[str]:
        async with self._pool.acquire() as connection:
            return {row["cloud_id"] for row in await connection.fetch(_SELECT_RECORDED_CLOUD_IDS)}

    async def list_snapshot_ids(self) -> AbstractSet[str]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch("SELECT snapshot_id::text, cloud_id FROM disk_snapshots")
        return {each for row in rows for each in row.values() if each is not None}

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
        case ImportSnapshots():
            return await _import_snapshots(connection, write.disk_id, write.snapshots, now, by)
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
    called = f", called {write.tagged_name!r} in its tag" if write.tagged_name is not None else ""
    owner = "; created an inactive user of that name" if is_new_user else ""
    message = f"imported volume {fields['ebs_volume_id']} of {write.username}{called}{owner}"
    new = {column: (None, value) for column, value in fields.items()}
    await _insert_event(connection, disk_id, at=now, kind="imported", message=message, by=by, changes=new)
    await _import_snapshots(connection, disk_id, write.snapshots, now, by)
    return True


async def _ensure_owner(connection: Connection, username: str) -> tuple[UserId, bool]:
    owner = await connection.fetchrow("SELECT owner_id, is_new FROM ensure_volume_owner($1)", username)
    assert owner is not None  # the function returns one row
    return UserId(owner["owner_id"]), owner["is_new"]


async def _import_snapshots(
    connection: Connection, disk_id: UUID, snapshots: Sequence[Snapshot], now: datetime, by: str
) -> bool:
    imported = []
    for each in snapshots:
        is_pending = each.state is SnapshotState.PENDING
        is_new = await connection.fetchval(
            _IMPORT_SNAPSHOT,
            uuid5(_SNAPSHOT_NAMESPACE, each.snapshot_id),
            disk_id,
            each.volume_id,
            SnapshotReason.IMPORTED,
            SnapshotStatus.PENDING if is_pending else SnapshotStatus.COMPLETED,
            each.created_at,
            each.snapshot_id,
            each.size_gb,
        )
        if is_new is not None:
            imported.append(each.snapshot_id)
    if imported:
        message = f"imported {len(imported)} snapshots of volume {snapshots[0].volume_id}: {', '.join(imported)}"
        await _insert_event(connection, disk_id, at=now, kind="imported", message=message, by=by, changes={})
    return bool(imported)


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
