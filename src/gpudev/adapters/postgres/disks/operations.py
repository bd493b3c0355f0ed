"""Disk operations and disk quota on PostgreSQL.

Requests of one user are serialized by a lock. Every other write names the versions that it expects.
`disks.operation_id` and `operation_status` show a running operation to reconcilers, which read the disk's row only.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.adapters.postgres.disks import disk_rows
from gpudev.domain.disks.names import DEFAULT_DISK, NO_DISK
from gpudev.domain.disks.operations import (
    DiskSettings,
    DiskState,
    Operation,
    OperationChanges,
    OperationFacts,
    OperationId,
    SnapshotRecord,
    UserDisks,
)
from gpudev.domain.errors import Conflict, LimitReached, NotFound, Stale
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.domain.queue import DISK_QUEUE
from gpudev.domain.reservations.reservation import ReservationDraft
from gpudev.planning.disks.quota import DiskUsage, check_quota
from gpudev.ports.disks import Decide, DiskInUse, DiskMaintenance

DISK_OPERATION_CHANGES_CHANNEL = "disk_operation_changes"
"""Notifies of every new operation and of every step, by the operation's id."""
_MAX_DEADLOCKS = 3
_SELECT_BLOCKER = """
    SELECT o.* FROM disk_operations o
    WHERE o.finished_at IS NULL AND o.seq < $1 AND o.blocks && $2::uuid[]
    ORDER BY o.seq LIMIT 1
"""
_SELECT_RELATED_SNAPSHOTS = """
    SELECT * FROM disk_snapshots
    WHERE disk_id = $1 OR operation_id = $2 OR snapshot_id = ANY($3::uuid[])
    ORDER BY created_at, snapshot_id
"""
_WAKE_BLOCKED = """
    UPDATE disk_operations SET next_attempt_at = NULL
    WHERE operation_id IN (
        SELECT operation_id FROM disk_operations
        WHERE finished_at IS NULL AND seq > $1 AND blocks && $2::uuid[] AND next_attempt_at IS NOT NULL
        FOR UPDATE SKIP LOCKED)  -- one that is being written is examined soon anyway
"""
_SELECT_WITHOUT_SNAPSHOT = """
    SELECT d.user_id, d.disk_id, r.reservation_id FROM reservations r JOIN disks d USING (disk_id)
    WHERE r.released_at IS NULL AND r.status = 'active' AND r.launched_at <= $1 AND d.ebs_volume_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM disk_snapshots s WHERE s.disk_id = d.disk_id AND s.created_at > $1)
      AND NOT EXISTS (SELECT FROM disk_operations o
                      WHERE o.disk_id = d.disk_id AND o.kind = 'snapshot' AND o.asked_at > $1)
    ORDER BY r.launched_at, d.disk_id
"""
# The newest unfinished operation, or else the one that was just written.
_UPDATE_DISK_STATUS = """
    UPDATE disks d
    SET operation_id = o.operation_id, operation_error = o.error,
        operation_status = CASE o.state WHEN 'done' THEN 'completed' ELSE o.state END
    FROM (SELECT * FROM disk_operations
          WHERE disk_id = $1 AND (finished_at IS NULL OR operation_id = $2)
          ORDER BY finished_at IS NULL DESC, seq DESC LIMIT 1) o
    WHERE d.disk_id = $1
      AND (d.operation_id, d.operation_error, d.operation_status) IS DISTINCT FROM
          (o.operation_id, o.error, CASE o.state WHEN 'done' THEN 'completed' ELSE o.state END)
"""


class PostgresDiskOperations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def accept(
        self, user_id: UserId, decide: Decide, *, now: datetime, by: str, key: str | None = None
    ) -> Operation | None:
        for _ in range(_MAX_DEADLOCKS):
            with contextlib.suppress(asyncpg.DeadlockDetectedError):  # with a reconciler, which writes many disks
                return await self._accept(user_id, decide, now, by, key)
        return await self._accept(user_id, decide, now, by, key)

    async def _accept(
        self, user_id: UserId, decide: Decide, now: datetime, by: str, key: str | None
    ) -> Operation | None:
        async with self._pool.transaction() as connection:
            await lock_user_disks(connection, user_id)
            if key is not None and (earlier := await _find_operation_by_key(connection, user_id, key)) is not None:
                return earlier
            changes = decide(await _load_user_disks(connection, user_id))
            return None if changes is None else await _insert_operation(connection, changes, key, now, by)

    async def load_facts(self, operation_id: OperationId) -> OperationFacts | None:
        async with (
            self._pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            operation = await _find_operation(connection, operation_id)
            return None if operation is None else await _load_operation_facts(connection, operation)

    async def write_changes(self, changes: OperationChanges, *, now: datetime, by: str) -> Operation:
        operation = changes.operation
        async with self._pool.transaction() as connection:
            row = await connection.fetchrow(disk_rows.UPDATE_OPERATION, *disk_rows.operation_update_values(operation))
            if row is None:
                raise Stale("the operation has changed meanwhile")
            if changes.disk is not None:
                await _update_disk(connection, changes.disk)
            await _write_snapshots_and_volumes(connection, changes, now, by)
            freed = set(row["blocked"]) - set(operation.blocks)
            if freed:
                await connection.execute(_WAKE_BLOCKED, row["seq"], list(freed))
            return disk_rows.operation_from_row(row)

    async def due(self, now: datetime, limit: int = 100) -> list[OperationId]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                """
                SELECT operation_id FROM disk_operations
                WHERE finished_at IS NULL AND (next_attempt_at IS NULL OR next_attempt_at <= $1)
                ORDER BY seq LIMIT $2
                """,
                now,
                limit,
            )
        return [OperationId(row["operation_id"]) for row in rows]

    async def next_due(self) -> datetime | None:
        async with self._pool.acquire() as connection:
            found: datetime | None = await connection.fetchval(
                "SELECT min(coalesce(next_attempt_at, asked_at)) FROM disk_operations WHERE finished_at IS NULL"
            )
        return found

    async def list_pending_snapshots(self, limit: int = 1000) -> list[SnapshotRecord]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                """
                SELECT s.* FROM disk_snapshots s LEFT JOIN disk_operations o USING (operation_id)
                WHERE s.status = 'pending' AND (o.finished_at IS NOT NULL OR s.operation_id IS NULL)
                ORDER BY s.created_at LIMIT $1
                """,
                limit,
            )
        return [disk_rows.snapshot_from_row(row) for row in rows]

    async def finish_snapshot(self, record: SnapshotRecord, *, now: datetime, event: str | None = None) -> bool:
        async with self._pool.acquire() as connection:
            finished = await connection.fetchval(
                disk_rows.SETTLE_SNAPSHOT,
                record.snapshot_id,
                record.status,
                record.size_gb,
                record.error,
                record.lacks,
                event,
                now,
            )
        return finished is not None

    async def list_deleted_before(self, moment: datetime) -> list[DiskMaintenance]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                """
                SELECT user_id, disk_id FROM disks
                WHERE is_deleted AND purged_at IS NULL AND deleted_at <= $1 ORDER BY deleted_at, disk_id
                """,
                moment,
            )
        return _maintenance_from_rows(rows)

    async def list_with_snapshots(self) -> list[DiskMaintenance]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                """
                SELECT d.user_id, d.disk_id FROM disks d
                WHERE d.purge_started_at IS NULL
                  AND (EXISTS (SELECT FROM disk_snapshots s WHERE s.disk_id = d.disk_id AND s.status <> 'removed')
                       OR EXISTS (SELECT FROM disk_volumes v WHERE v.disk_id = d.disk_id AND v.status = 'retired'))
                ORDER BY d.created_at, d.disk_id
                """
            )
        return _maintenance_from_rows(rows)

    async def list_without_snapshot_since(self, moment: datetime) -> list[DiskInUse]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(_SELECT_WITHOUT_SNAPSHOT, moment)
        return [
            DiskInUse(UserId(row["user_id"]), DiskId(row["disk_id"]), ReservationId(row["reservation_id"]))
            for row in rows
        ]

    async def find_operation(self, operation_id: OperationId) -> Operation | None:
        async with self._pool.acquire() as connection:
            return await _find_operation(connection, operation_id)

    async def operations(self, disk_id: DiskId, limit: int = 50) -> list[Operation]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                "SELECT * FROM disk_operations WHERE disk_id = $1 ORDER BY seq DESC LIMIT $2", disk_id, limit
            )
        return [disk_rows.operation_from_row(row) for row in rows]

    async def snapshots(self, disk_id: DiskId) -> list[SnapshotRecord]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                "SELECT * FROM disk_snapshots WHERE disk_id = $1 ORDER BY created_at DESC, snapshot_id", disk_id
            )
        return [disk_rows.snapshot_from_row(row) for row in rows]


async def _find_operation(connection: Connection, operation_id: OperationId) -> Operation | None:
    row = await connection.fetchrow("SELECT * FROM disk_operations WHERE operation_id = $1", operation_id)
    return None if row is None else disk_rows.operation_from_row(row)


async def _find_operation_by_key(connection: Connection, user_id: UserId, key: str) -> Operation | None:
    row = await connection.fetchrow(
        "SELECT * FROM disk_operations WHERE user_id = $1 AND request_key = $2", user_id, key
    )
    return None if row is None else disk_rows.operation_from_row(row)


async def _load_user_disks(connection: Connection, user_id: UserId) -> UserDisks:
    username = await connection.fetchval("SELECT username FROM api_users WHERE user_id = $1", user_id)
    if username is None:
        raise NotFound("user not found")
    # A submit locks the disk's row until its reservation is visible. So the holder is read after this lock.
    await connection.execute("SELECT FROM disks WHERE user_id = $1 ORDER BY disk_id FOR UPDATE", user_id)
    disks = await connection.fetch(disk_rows.SELECT_DISK + "WHERE d.user_id = $1 AND d.purged_at IS NULL", user_id)
    ids = [row["disk_id"] for row in disks]
    unfinished = await connection.fetch(
        "SELECT * FROM disk_operations WHERE finished_at IS NULL AND user_id = $1 ORDER BY seq", user_id
    )
    snapshots = await connection.fetch(
        "SELECT * FROM disk_snapshots WHERE disk_id = ANY($1::uuid[]) AND status <> 'removed' ORDER BY created_at", ids
    )
    volumes = await connection.fetch(
        "SELECT * FROM disk_volumes WHERE disk_id = ANY($1::uuid[]) AND status <> 'removed' ORDER BY made_at", ids
    )
    return UserDisks(
        user_id,
        username,
        {disk.disk_id: disk for disk in map(disk_rows.disk_from_row, disks)},
        tuple(map(disk_rows.operation_from_row, unfinished)),
        tuple(map(disk_rows.snapshot_from_row, snapshots)),
        tuple(map(disk_rows.volume_from_row, volumes)),
    )


async def _load_operation_facts(connection: Connection, operation: Operation) -> OperationFacts:
    row = await connection.fetchrow(disk_rows.SELECT_DISK + "WHERE d.disk_id = $1", operation.disk_id)
    assert row is not None  # the operation refers to it
    disk, source = disk_rows.disk_from_row(row), None
    if operation.source_id is not None:
        row = await connection.fetchrow(disk_rows.SELECT_DISK + "WHERE d.disk_id = $1", operation.source_id)
        source = None if row is None else disk_rows.disk_from_row(row)
    rows = await connection.fetch("SELECT * FROM disk_volumes WHERE disk_id = $1 ORDER BY made_at, token", disk.disk_id)
    volumes = tuple(disk_rows.volume_from_row(row) for row in rows)
    snapshot_ids = {operation.snapshot_id, disk.saved_as, None if source is None else source.saved_as}
    snapshot_ids |= {volume.saved_in for volume in volumes} | {volume.from_snapshot for volume in volumes}
    rows = await connection.fetch(
        _SELECT_RELATED_SNAPSHOTS,
        disk.disk_id,
        operation.operation_id,
        [snapshot_id for snapshot_id in snapshot_ids if snapshot_id is not None],
    )
    snapshots = tuple(disk_rows.snapshot_from_row(row) for row in rows)
    row = await connection.fetchrow(_SELECT_BLOCKER, operation.seq, list(operation.blocks))
    blocker = None if row is None else disk_rows.operation_from_row(row)
    return OperationFacts(operation, disk, source, snapshots, volumes, blocker)


async def _insert_operation(
    connection: Connection, changes: OperationChanges, key: str | None, now: datetime, by: str
) -> Operation:
    disk = changes.disk
    if disk is not None:
        try:
            if disk.mark == 0:
                await connection.execute(
                    disk_rows.INSERT_DISK,
                    disk.disk_id,
                    disk.user_id,
                    disk.name,
                    disk.created_at,
                    disk.size_gb,
                    disk.zone,
                )
            else:
                await _update_disk(connection, disk)
        except asyncpg.UniqueViolationError as error:
            # A submit created one of that name after we read the disks.
            raise Conflict(f"you already have a disk named {disk.name!r}") from error
    row = await connection.fetchrow(
        disk_rows.INSERT_OPERATION, *disk_rows.operation_insert_values(changes.operation, key)
    )
    assert row is not None
    await _write_snapshots_and_volumes(connection, changes, now, by)
    # Last: PGMQ's notification locks a row of its own until the commit.
    body = {"operation_id": str(changes.operation.operation_id), "cause": "asked"}
    await connection.execute("SELECT pgmq.send($1, $2::jsonb)", DISK_QUEUE, body)
    return disk_rows.operation_from_row(row)


async def _update_disk(connection: Connection, disk: DiskState) -> None:
    if await connection.fetchval(disk_rows.UPDATE_DISK, *disk_rows.disk_update_values(disk)) is None:
        raise Stale("the disk was changed meanwhile")


async def _write_snapshots_and_volumes(
    connection: Connection, changes: OperationChanges, now: datetime, by: str
) -> None:
    operation = changes.operation
    # Loops, not batches: most steps have none of these, and a launch may wait for this.
    for snapshot in changes.snapshots:
        await connection.execute(disk_rows.WRITE_SNAPSHOT, *disk_rows.snapshot_values(snapshot))
    for volume in changes.volumes:
        await connection.execute(disk_rows.WRITE_VOLUME, *disk_rows.volume_values(volume))
    await connection.execute(_UPDATE_DISK_STATUS, operation.disk_id, operation.operation_id)
    if changes.event is not None:
        await connection.execute(
            "INSERT INTO disk_events (disk_id, at, kind, message, by) VALUES ($1, $2, $3, $4, $5)",
            operation.disk_id,
            now,
            operation.kind,
            changes.event,
            by,
        )


def _maintenance_from_rows(rows: Iterable[asyncpg.Record]) -> list[DiskMaintenance]:
    return [DiskMaintenance(UserId(row["user_id"]), DiskId(row["disk_id"])) for row in rows]


# Disk quota of a submit that may create a disk. Other changes of the user's disks wait for it.

_LOCK_USER_DISKS = "SELECT pg_advisory_xact_lock(hashtext('gpu-dev disks'), $1)"
_HAS_DISK = "SELECT EXISTS (SELECT FROM disks WHERE user_id = $1 AND disk_name = $2 AND NOT is_deleted)"
# A disk without a volume counts with the default size, and a growing one with its new size.
_HOLDINGS = """
    SELECT count(*) AS count, coalesce(bool_or(d.disk_name = $2), false) AS has_it,
           coalesce(sum(greatest(coalesce(d.size_gb, $3), grows.size_gb)), 0)::bigint AS size_gb
    FROM disks d LEFT JOIN LATERAL (
        SELECT max(o.size_gb) AS size_gb FROM disk_operations o
        WHERE o.disk_id = d.disk_id AND o.kind = 'resize' AND o.finished_at IS NULL
    ) grows ON true
    WHERE d.user_id = $1 AND NOT d.is_deleted
"""


async def lock_user_disks(connection: Connection, user_id: UserId) -> None:
    """Serializes changes of this user's disks until the transaction ends."""
    await connection.execute(_LOCK_USER_DISKS, user_id)


async def may_create_disk(connection: Connection, draft: ReservationDraft) -> bool:
    """Whether the quota must be checked."""
    if draft.disk_name is not None:
        return draft.disk_name != NO_DISK
    return not await connection.fetchval(_HAS_DISK, draft.user_id, DEFAULT_DISK)


async def apply_disk_quota(connection: Connection, draft: ReservationDraft, settings: DiskSettings) -> ReservationDraft:
    """An existing disk passes. Raises LimitReached when a named disk would exceed the quota.

    Without a name, the draft gets scratch space instead.
    """
    await lock_user_disks(connection, draft.user_id)
    name = draft.disk_name or DEFAULT_DISK
    row = await connection.fetchrow(_HOLDINGS, draft.user_id, name, settings.default_size_gb)
    assert row is not None  # an aggregate returns one row
    if row["has_it"]:
        return draft
    try:
        usage = DiskUsage(row["count"], row["size_gb"])
        check_quota(usage, settings, more=1, more_gb=settings.default_size_gb)
    except LimitReached as error:
        if draft.disk_name is not None:
            raise
        return replace(draft, disk_name=NO_DISK, scratch_reason=str(error))
    return draft
