"""Disk attachments of reservations, and contents of snapshots, on PostgreSQL."""

from datetime import datetime, timedelta

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.disks import disk_rows
from gpudev.domain.disks.contents import Contents
from gpudev.domain.disks.operations import OperationChanges, OperationKind, RecordedSnapshotId, SnapshotRecord
from gpudev.domain.ids import DiskId, ReservationId
from gpudev.ports.disks import DiskAttachment

_LATEST_OPERATIONS = """
    SELECT DISTINCT ON (kind) *, count(*) OVER (PARTITION BY kind) AS times
    FROM disk_operations WHERE reservation_id = $1 AND disk_id = $2 ORDER BY kind, seq DESC
"""
_SELECT_UNLISTED = """
    SELECT s.* FROM disk_snapshots s
    WHERE s.status = 'completed' AND s.cloud_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM disk_contents c WHERE c.snapshot_id = s.snapshot_id)
    ORDER BY s.created_at DESC LIMIT $1
"""
_SAVE_REPORTED = """
    INSERT INTO disk_listings (reservation_id, disk_id, listed_at, contents) VALUES ($1, $2, $3, $4)
    ON CONFLICT (reservation_id) DO UPDATE SET listed_at = EXCLUDED.listed_at, contents = EXCLUDED.contents
"""
_KEEP_REPORTED = """
    INSERT INTO disk_contents (snapshot_id, kept_at, as_of, contents)
    SELECT s.snapshot_id, $1, l.listed_at, l.contents
    FROM disk_listings l JOIN disk_operations o USING (reservation_id, disk_id)
                         JOIN disk_snapshots s USING (operation_id)
    WHERE o.kind = 'put_away' AND s.disk_id = l.disk_id AND s.status IN ('pending', 'completed')
    ON CONFLICT DO NOTHING
"""
# Listings whose snapshot is known, or will never be.
_DELETE_REPORTED = """
    DELETE FROM disk_listings l
    WHERE l.listed_at < $2
       OR EXISTS (SELECT FROM disk_operations o WHERE o.reservation_id = l.reservation_id AND o.disk_id = l.disk_id
                     AND o.kind = 'put_away' AND o.finished_at < $1)
"""
_REPORTED_RETENTION = timedelta(days=7)

# One statement, so that a launch waits for one answer. A concurrent request for the disk also writes the disk's row;
# then this statement writes nothing.
_WRITE_FINISHED = """
    WITH disk AS (
        UPDATE disks d
        SET saved_as = $3, zone = $4, operation_id = $5, operation_error = NULL, operation_status = 'completed'
        WHERE d.disk_id = $1 AND d.xmin::text::bigint = $2
          AND NOT EXISTS (SELECT FROM disk_operations o WHERE o.finished_at IS NULL AND o.blocks @> ARRAY[$1::uuid])
        RETURNING d.disk_id
    ), operation AS (
        INSERT INTO disk_operations (operation_id, kind, user_id, disk_id, state, step, blocks, asked_at, finished_at,
                                     result, request_key, reservation_id, zone)
        SELECT $5, $6, $7, disk_id, $8, $9, '{}', $10, $10, $11, $12, $13, $14 FROM disk
        RETURNING disk_id
    )
    INSERT INTO disk_events (disk_id, at, kind, message, by)
    SELECT disk_id, $10, $6, $15, $16 FROM operation RETURNING disk_id
"""


class PostgresAttachments:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find_attachment(self, disk_id: DiskId, reservation_id: ReservationId) -> DiskAttachment | None:
        """The disk is read last, so that the results of a finished operation are included."""
        async with self._pool.acquire() as connection:
            found = await connection.fetch(_LATEST_OPERATIONS, reservation_id, disk_id)
            row = await connection.fetchrow(disk_rows.SELECT_DISK + "WHERE d.disk_id = $1", disk_id)
        if row is None:
            return None
        operations = {operation["kind"]: operation for operation in found}
        make_ready = operations.get(OperationKind.MAKE_READY)
        put_away = operations.get(OperationKind.PUT_AWAY)
        return DiskAttachment(
            disk_rows.disk_from_row(row),
            ready_operation=None if make_ready is None else disk_rows.operation_from_row(make_ready),
            ready_count=0 if make_ready is None else make_ready["times"],
            away_operation=None if put_away is None else disk_rows.operation_from_row(put_away),
        )

    async def write_finished_operation(self, changes: OperationChanges, key: str, *, now: datetime, by: str) -> bool:
        operation, disk = changes.operation, changes.disk
        assert disk is not None  # operations that make a disk ready change it
        async with self._pool.acquire() as connection:
            written = await connection.fetchval(
                _WRITE_FINISHED,
                disk.disk_id,
                disk.mark,
                disk.saved_as,
                disk.zone,
                operation.operation_id,
                operation.kind.value,
                operation.user_id,
                operation.state.value,
                operation.step,
                now,
                operation.result,
                key,
                operation.reservation_id,
                operation.zone,
                changes.event,
                by,
            )
        return written is not None


class PostgresDiskContents:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def save_contents(self, snapshot_id: RecordedSnapshotId, contents: Contents, *, now: datetime) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(
                "INSERT INTO disk_contents (snapshot_id, kept_at, contents) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                snapshot_id,
                now,
                contents.to_json(),
            )

    async def delete_removed_contents(self) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(
                "DELETE FROM disk_contents c USING disk_snapshots s "
                "WHERE s.snapshot_id = c.snapshot_id AND s.status = 'removed'"
            )

    async def save_reported_contents(
        self, reservation_id: ReservationId, disk_id: DiskId, contents: Contents, *, now: datetime
    ) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(_SAVE_REPORTED, reservation_id, disk_id, now, contents.to_json())

    async def assign_reported_contents(self, *, now: datetime) -> None:
        async with self._pool.transaction() as connection:
            await connection.execute(_KEEP_REPORTED, now)
            await connection.execute(_DELETE_REPORTED, now, now - _REPORTED_RETENTION)

    async def list_snapshots_without_contents(self, limit: int = 1000) -> list[SnapshotRecord]:
        async with self._pool.acquire() as connection:
            return [disk_rows.snapshot_from_row(row) for row in await connection.fetch(_SELECT_UNLISTED, limit)]
