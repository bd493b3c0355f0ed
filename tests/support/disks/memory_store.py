"""The store of disk operations in memory, held to the same contract as the one on PostgreSQL."""

from dataclasses import replace
from datetime import datetime

from gpudev.domain.disks.operations import (
    DiskState,
    Operation,
    OperationChanges,
    OperationFacts,
    OperationId,
    OperationKind,
    RecordedSnapshotId,
    SnapshotRecord,
    SnapshotStatus,
    UserDisks,
    VolumeRecord,
    VolumeStatus,
)
from gpudev.domain.errors import DiskHeld, GpuDevError, Stale
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.ports.disks import Decide, DiskInUse, DiskMaintenance
from support.disks.memory_cloud import Trouble


class MemoryDiskStore:
    """`trouble` may end the process before or after a write; what was written stays, as in a database."""

    def __init__(self, trouble: Trouble | None = None) -> None:
        self.trouble = trouble or Trouble()
        self.users: dict[UserId, str] = {}
        self.all_disks: dict[DiskId, DiskState] = {}
        self.all_operations: dict[OperationId, Operation] = {}
        self.all_snapshots: dict[RecordedSnapshotId, SnapshotRecord] = {}
        self.all_volumes: dict[object, VolumeRecord] = {}
        self.events: list[tuple[DiskId, str]] = []
        self._keys: dict[tuple[UserId, str], OperationId] = {}
        self._seq = 0

    # --- what reservations do (in the database: submit and release) -----------------------------------------------

    def claim(self, disk_id: DiskId, reservation_id: ReservationId) -> None:
        disk = self.all_disks[disk_id]
        if disk.holder is not None or disk.is_deleted:
            raise DiskHeld("it is held or deleted")
        self._put(replace(disk, holder=reservation_id))

    def release(self, disk_id: DiskId) -> None:
        self._put(replace(self.all_disks[disk_id], holder=None))

    # --- the port --------------------------------------------------------------------------------------------------

    async def accept(
        self, user_id: UserId, decide: Decide, *, now: datetime, by: str, key: str | None = None
    ) -> Operation | None:
        dies = self.trouble.before("accept")
        try:
            operation = self._accept(user_id, decide, key)
        except GpuDevError:
            self.trouble.done("accept", dies)
            raise
        self.trouble.done("accept", dies)
        return operation

    def _accept(self, user_id: UserId, decide: Decide, key: str | None) -> Operation | None:
        if key is not None and (user_id, key) in self._keys:
            return self.all_operations[self._keys[user_id, key]]
        changes = decide(self._of(user_id))
        if changes is None:
            return None
        self._seq += 1
        operation = replace(changes.operation, seq=self._seq, version=1)
        self.all_operations[operation.operation_id] = operation
        self._write_rest(changes)
        if key is not None:
            self._keys[user_id, key] = operation.operation_id
        return operation

    async def load_facts(self, operation_id: OperationId) -> OperationFacts | None:
        operation = self.all_operations.get(operation_id)
        if operation is None:
            return None
        disk = self.all_disks[operation.disk_id]
        source = None if operation.source_id is None else self.all_disks.get(operation.source_id)
        volumes = tuple(one for one in self.all_volumes.values() if one.disk_id == disk.disk_id)
        named = {operation.snapshot_id, disk.saved_as, source and source.saved_as}
        named |= {one.saved_in for one in volumes} | {one.from_snapshot for one in volumes}
        snapshots = tuple(
            one
            for one in self.all_snapshots.values()
            if one.disk_id == disk.disk_id or one.operation_id == operation_id or one.snapshot_id in named
        )
        earlier = [
            one
            for one in self.all_operations.values()
            if one.seq < operation.seq and not one.state.is_finished and one.blocks & operation.blocks
        ]
        before = min(earlier, key=lambda one: one.seq, default=None)
        return OperationFacts(operation, disk, source, snapshots, volumes, before)

    async def write_changes(self, changes: OperationChanges, *, now: datetime, by: str) -> Operation:
        dies = self.trouble.before("write")
        operation = changes.operation
        before = self.all_operations[operation.operation_id]
        if before.version != operation.version:
            raise Stale("the operation has changed meanwhile")
        if changes.disk is not None and self.all_disks[changes.disk.disk_id].mark != changes.disk.mark:
            raise Stale("the disk was changed meanwhile")
        written = replace(operation, version=operation.version + 1)
        self.all_operations[operation.operation_id] = written
        self._write_rest(changes)
        freed = before.blocks - operation.blocks
        for other in self.all_operations.values():
            if not other.state.is_finished and other.blocks & freed and other.seq > operation.seq:
                self.all_operations[other.operation_id] = replace(other, next_attempt_at=None)
        self.trouble.done("write", dies)
        return written

    async def due(self, now: datetime, limit: int = 100) -> list[OperationId]:
        due = [one for one in self._unfinished() if one.next_attempt_at is None or one.next_attempt_at <= now]
        return [one.operation_id for one in due][:limit]

    async def next_due(self) -> datetime | None:
        return min((one.next_attempt_at or one.asked_at for one in self._unfinished()), default=None)

    async def list_pending_snapshots(self, limit: int = 1000) -> list[SnapshotRecord]:
        return [
            one
            for one in self.all_snapshots.values()
            if one.status is SnapshotStatus.PENDING and self.all_operations[one.operation_id].state.is_finished
        ][:limit]

    async def finish_snapshot(self, record: SnapshotRecord, *, now: datetime, event: str | None = None) -> bool:
        dies = self.trouble.before("settle")
        if self.all_snapshots[record.snapshot_id].status is not SnapshotStatus.PENDING:
            return False
        self.all_snapshots[record.snapshot_id] = record
        if event is not None:
            self.events.append((record.disk_id, event))
        self.trouble.done("settle", dies)
        return True

    async def list_deleted_before(self, moment: datetime) -> list[DiskMaintenance]:
        return [
            DiskMaintenance(one.user_id, one.disk_id)
            for one in self.all_disks.values()
            if one.is_deleted and one.purged_at is None and one.deleted_at is not None and one.deleted_at <= moment
        ]

    async def list_with_snapshots(self) -> list[DiskMaintenance]:
        some = {one.disk_id for one in self.all_snapshots.values() if one.status is not SnapshotStatus.REMOVED}
        some |= {one.disk_id for one in self.all_volumes.values() if one.status is VolumeStatus.RETIRED}
        return [
            DiskMaintenance(one.user_id, one.disk_id)
            for one in self.all_disks.values()
            if one.disk_id in some and one.purge_started_at is None
        ]

    async def list_without_snapshot_since(self, moment: datetime) -> list[DiskInUse]:
        """Who has had a disk for how long is not known here: it is as if all had been forever."""
        kept = {one.disk_id for one in self.all_snapshots.values() if one.created_at > moment}
        kept |= {
            one.disk_id
            for one in self.all_operations.values()
            if one.kind is OperationKind.SNAPSHOT and one.asked_at > moment
        }
        return [
            DiskInUse(one.user_id, one.disk_id, one.holder)
            for one in self.all_disks.values()
            if one.holder is not None and one.volume_id is not None and one.disk_id not in kept
        ]

    async def find_operation(self, operation_id: OperationId) -> Operation | None:
        return self.all_operations.get(operation_id)

    async def operations(self, disk_id: DiskId, limit: int = 50) -> list[Operation]:
        mine = [one for one in self.all_operations.values() if one.disk_id == disk_id]
        return sorted(mine, key=lambda one: -one.seq)[:limit]

    def disks_of(self, user_id: UserId) -> list[DiskState]:
        mine = self._of(user_id).disks.values()
        return sorted(mine, key=lambda one: (one.name, one.created_at, one.disk_id))

    async def snapshots(self, disk_id: DiskId) -> list[SnapshotRecord]:
        mine = [one for one in self.all_snapshots.values() if one.disk_id == disk_id]
        return sorted(mine, key=lambda one: one.created_at, reverse=True)

    # --- within ----------------------------------------------------------------------------------------------------

    def _of(self, user_id: UserId) -> UserDisks:
        disks = {
            one.disk_id: one for one in self.all_disks.values() if one.user_id == user_id and one.purged_at is None
        }
        return UserDisks(
            user_id,
            self.users[user_id],
            disks,
            tuple(one for one in self._unfinished() if one.user_id == user_id),
            tuple(
                one
                for one in self.all_snapshots.values()
                if one.disk_id in disks and one.status is not SnapshotStatus.REMOVED
            ),
            tuple(
                one
                for one in self.all_volumes.values()
                if one.disk_id in disks and one.status is not VolumeStatus.REMOVED
            ),
        )

    def _unfinished(self) -> list[Operation]:
        return sorted(
            (one for one in self.all_operations.values() if not one.state.is_finished), key=lambda one: one.seq
        )

    def _write_rest(self, changes: OperationChanges) -> None:
        if changes.disk is not None:
            self._put(changes.disk)
        self.all_snapshots |= {one.snapshot_id: one for one in changes.snapshots}
        self.all_volumes |= {one.token: one for one in changes.volumes}
        if changes.event is not None:
            self.events.append((changes.operation.disk_id, changes.event))

    def _put(self, disk: DiskState) -> None:
        """Every write of a row gives it another mark. Who holds it is not of this row."""
        held = self.all_disks.get(disk.disk_id)
        self.all_disks[disk.disk_id] = replace(disk, mark=(held.mark if held else 0) + 1)
