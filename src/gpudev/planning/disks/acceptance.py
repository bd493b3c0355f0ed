"""Acceptance of disk requests: what is allowed now, and what changes at once.

Runs with all of one user's disks loaded and locked, so that two simultaneous requests cannot both be accepted. The
operation's steps do everything that needs the cloud.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from gpudev.domain.disks.names import NO_DISK, check_disk_name
from gpudev.domain.disks.operations import (
    CloneDisk,
    CreateDisk,
    DeleteDisk,
    DiskRequest,
    DiskSettings,
    DiskState,
    MakeReady,
    Operation,
    OperationChanges,
    OperationId,
    OperationKind,
    PruneDisk,
    PurgeDisk,
    PutAway,
    RecordedSnapshotId,
    RenameDisk,
    ResizeDisk,
    RestoreDisk,
    SnapshotDisk,
    SnapshotDiskInUse,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    UndeleteDisk,
    UserDiskRequest,
    UserDisks,
    VolumeStatus,
)
from gpudev.domain.errors import Conflict, DiskHeld, Invalid, NotFound, Stale
from gpudev.domain.ids import DiskId, ReservationId, short_id
from gpudev.planning.disks.quota import DiskUsage, check_quota
from gpudev.planning.disks.retention import needed_snapshots, prunable

_MIN_SIZE_GB = 1


def accept_request(
    request: DiskRequest, facts: UserDisks, operation_id: OperationId, now: datetime, settings: DiskSettings
) -> OperationChanges | None:
    """Raises Invalid, NotFound, Conflict, DiskHeld or LimitReached. None: nothing to do."""
    acceptance = _Acceptance(facts, operation_id, now, settings)
    match request:
        case PurgeDisk():
            return acceptance.purge(request)
        case PruneDisk():
            return acceptance.prune(request)
        case SnapshotDiskInUse():
            return acceptance.keep_in_use(request)
        case MakeReady():
            return acceptance.make_ready(request)
        case PutAway():
            return acceptance.put_away(request)
        case _:
            return _accept_user_request(request, acceptance)


def _accept_user_request(request: UserDiskRequest, acceptance: "_Acceptance") -> OperationChanges:
    match request:
        case CreateDisk():
            return acceptance.create(request)
        case SnapshotDisk():
            return acceptance.snapshot(request)
        case RestoreDisk():
            return acceptance.restore(request)
        case UndeleteDisk():
            return acceptance.undelete(request)
        case CloneDisk():
            return acceptance.clone(request)
        case ResizeDisk():
            return acceptance.resize(request)
        case RenameDisk():
            return acceptance.rename(request)
        case DeleteDisk():
            return acceptance.delete(request)
        case _:
            assert_never(request)


@dataclass(frozen=True, slots=True)
class _Acceptance:
    facts: UserDisks
    operation_id: OperationId
    now: datetime
    settings: DiskSettings

    # --- requests of users -----------------------------------------------------------------------------------------

    def create(self, request: CreateDisk) -> OperationChanges:
        size = self._check_size(request.size_gb or self.settings.default_size_gb)
        disk = self._new_disk(request.disk_id, request.name, size)
        operation = self._operation(OperationKind.CREATE, disk, zone=request.zone or self.settings.zone or None)
        return OperationChanges(operation, disk, event=f"created, {size} GB")

    def snapshot(self, request: SnapshotDisk) -> OperationChanges:
        disk = self._get_free_disk(request.disk_id, "a snapshot", while_held=True)
        if disk.volume_id is None:
            raise Conflict(f"disk {disk.name!r} was never used: nothing to snapshot")
        return OperationChanges(self._operation(OperationKind.SNAPSHOT, disk), event="snapshot requested")

    def restore(self, request: RestoreDisk) -> OperationChanges:
        disk = self._get_free_disk(request.disk_id, "restoring a snapshot")
        chosen = self._get_snapshot(request.snapshot_id, disk)
        operation = self._operation(OperationKind.RESTORE, disk, snapshot_id=chosen.snapshot_id)
        return OperationChanges(
            operation, event=f"restore of the snapshot of {chosen.created_at:%Y-%m-%d %H:%M} UTC requested"
        )

    def undelete(self, request: UndeleteDisk) -> OperationChanges:
        disk = self._get_disk(request.disk_id)
        if not disk.is_deleted:
            raise Conflict(f"disk {disk.name!r} is not deleted")
        self._check_not_busy(disk, "restoring it")
        if disk.purge_started_at is not None:
            raise Conflict(f"disk {disk.name!r} was deleted too long ago: it is being purged")
        name = self._free_name(request.name or disk.name, "restore it under another name")
        self._within_quota(disk.size_gb or self.settings.default_size_gb)
        back = replace(disk, name=name, is_deleted=False, deleted_at=None)
        return OperationChanges(
            self._operation(OperationKind.UNDELETE, disk, name=name), back, event=f"restored as {name!r}"
        )

    def clone(self, request: CloneDisk) -> OperationChanges:
        # A snapshot does not change, whatever happens to its disk meanwhile.
        source = self._get_free_disk(request.source_id, "cloning it", while_held=request.snapshot_id is not None)
        snapshot = None if request.snapshot_id is None else self._get_snapshot(request.snapshot_id, source)
        if snapshot is None and source.volume_id is None and source.saved_as is None:
            raise Conflict(f"disk {source.name!r} was never used: nothing to clone")
        smallest = max(source.size_gb or 0, (snapshot and snapshot.size_gb) or 0, _MIN_SIZE_GB)
        size = self._check_size(request.size_gb or smallest)
        if size < smallest:
            raise Invalid(f"a clone of {source.name!r} needs at least {smallest} GB", field="size_gb")
        disk = self._new_disk(request.disk_id, request.name, size)
        operation = self._operation(
            OperationKind.CLONE, disk, source_id=source.disk_id, snapshot_id=request.snapshot_id, size_gb=size
        )
        if request.snapshot_id is None:  # the source must not change until its snapshot has begun
            operation = replace(operation, blocks=frozenset({disk.disk_id, source.disk_id}))
        return OperationChanges(operation, disk, event=f"cloned from {source.name!r}")

    def resize(self, request: ResizeDisk) -> OperationChanges:
        disk = self._get_free_disk(request.disk_id, "resizing it", while_held=True)
        now_gb = disk.size_gb or self.settings.default_size_gb
        size = self._check_size(request.size_gb)
        if size <= now_gb:
            raise Invalid(f"disks only grow: {disk.name!r} already has {now_gb} GB", field="size_gb")
        self._within_quota(size - now_gb, count=0)
        return OperationChanges(
            self._operation(OperationKind.RESIZE, disk, size_gb=size), event=f"growing to {size} GB"
        )

    def rename(self, request: RenameDisk) -> OperationChanges:
        disk = self._get_free_disk(request.disk_id, "renaming it")
        name = self._free_name(request.name)
        operation = self._operation(OperationKind.RENAME, disk, name=name)
        return OperationChanges(operation, replace(disk, name=name), event=f"renamed from {disk.name!r} to {name!r}")

    def delete(self, request: DeleteDisk) -> OperationChanges:
        disk = self._get_free_disk(request.disk_id, "deleting it")
        until = self.now + self.settings.retention
        deleted = replace(disk, is_deleted=True, deleted_at=self.now)
        return OperationChanges(
            self._operation(OperationKind.DELETE, disk),
            deleted,
            event=f"deleted; can be restored until {until:%Y-%m-%d}",
        )

    # --- requests of the system ------------------------------------------------------------------------------------

    def purge(self, request: PurgeDisk) -> OperationChanges | None:
        disk = self.facts.disks.get(request.disk_id)
        if disk is None or not disk.is_deleted or disk.deleted_at is None or disk.holder is not None:
            return None
        if disk.deleted_at + self.settings.retention > self.now or self._operations_on(disk.disk_id):
            return None
        snapshots = [each for each in self.facts.snapshots if each.disk_id == disk.disk_id]
        if self._needed_by_others(disk) & {each.snapshot_id for each in snapshots}:
            return None
        return OperationChanges(
            self._operation(OperationKind.PURGE, disk),
            replace(disk, purge_started_at=disk.purge_started_at or self.now),
            tuple(_to_be_removed(each) for each in snapshots if each.why is not SnapshotReason.IMPORTED),
            event="the restore period is over; the disk is being purged",
        )

    def prune(self, request: PruneDisk) -> OperationChanges | None:
        disk = self.facts.disks.get(request.disk_id)
        if disk is None or disk.purge_started_at is not None or self._operations_on(disk.disk_id):
            return None
        snapshots = [each for each in self.facts.snapshots if each.disk_id == disk.disk_id]
        old = prunable(snapshots, needed_snapshots(self.facts), self.now, self.settings)
        begun = [each for each in snapshots if each.status is SnapshotStatus.REMOVING]
        if not (old or begun or self._is_replaced_and_saved(disk)):
            return None
        removing = tuple(map(_to_be_removed, (*begun, *old)))
        operation = replace(self._operation(OperationKind.PRUNE, disk), blocks=frozenset())
        return OperationChanges(operation, None, removing, event=f"removing {len(old)} old snapshots" if old else None)

    def keep_in_use(self, request: SnapshotDiskInUse) -> OperationChanges | None:
        disk = self.facts.disks.get(request.disk_id)
        if disk is None or disk.holder != request.reservation_id or disk.volume_id is None:
            return None
        lately = self.now - self.settings.snapshot_every
        snapshots = [each for each in self.facts.snapshots if each.disk_id == disk.disk_id]
        if self._operations_on(disk.disk_id) or any(each.created_at > lately for each in snapshots):
            return None
        return OperationChanges(self._operation(OperationKind.SNAPSHOT, disk, reservation_id=request.reservation_id))

    def make_ready(self, request: MakeReady) -> OperationChanges:
        disk = self._living(request.disk_id)
        if disk.holder != request.reservation_id:
            raise DiskHeld(f"disk {disk.name!r} is not held by reservation {short_id(request.reservation_id)}")
        operation = self._operation(
            OperationKind.MAKE_READY, disk, reservation_id=request.reservation_id, zone=request.zone
        )
        return OperationChanges(operation)

    def put_away(self, request: PutAway) -> OperationChanges:
        disk = self._get_disk(request.disk_id)
        if disk.holder != request.reservation_id:
            # The caller's state is old: another reservation may be writing to the disk by now.
            raise Stale(f"disk {disk.name!r} is no longer held by reservation {short_id(request.reservation_id)}")
        operation = self._operation(
            OperationKind.PUT_AWAY, disk, reservation_id=request.reservation_id, contents=request.contents
        )
        return OperationChanges(operation)

    # --- rules -----------------------------------------------------------------------------------------------------

    def _operation(
        self,
        kind: OperationKind,
        disk: DiskState,
        *,
        reservation_id: ReservationId | None = None,
        source_id: DiskId | None = None,
        snapshot_id: RecordedSnapshotId | None = None,
        size_gb: int | None = None,
        zone: str | None = None,
        name: str | None = None,
        contents: str | None = None,
    ) -> Operation:
        return Operation(
            self.operation_id,
            kind,
            self.facts.user_id,
            disk.disk_id,
            self.now,
            blocks=frozenset({disk.disk_id}),
            reservation_id=reservation_id,
            source_id=source_id,
            snapshot_id=snapshot_id,
            size_gb=size_gb,
            zone=zone,
            name=name,
            contents=contents,
        )

    def _get_disk(self, disk_id: DiskId) -> DiskState:
        disk = self.facts.disks.get(disk_id)
        if disk is None:
            raise NotFound("disk not found")
        return disk

    def _living(self, disk_id: DiskId) -> DiskState:
        disk = self._get_disk(disk_id)
        if disk.is_deleted:
            raise Conflict(f"disk {disk.name!r} is deleted; restore it first")
        return disk

    def _get_free_disk(self, disk_id: DiskId, what: str, *, while_held: bool = False) -> DiskState:
        """A disk that a user may change now. Raises Conflict or DiskHeld."""
        disk = self._living(disk_id)
        if disk.holder is not None and not while_held:
            raise DiskHeld(
                f"disk {disk.name!r} is held by reservation {short_id(disk.holder)}: {what} has to wait for its end"
            )
        self._check_not_busy(disk, what)
        return disk

    def _check_not_busy(self, disk: DiskState, what: str) -> None:
        for other in self._operations_on(disk.disk_id):
            if not other.kind.is_by_system:
                under_way = f"{other.kind.label} is under way ({other.step})"
                raise Conflict(f"disk {disk.name!r}: {under_way}; {what} has to wait")

    def _operations_on(self, disk_id: DiskId) -> list[Operation]:
        return [each for each in self.facts.unfinished if each.disk_id == disk_id or disk_id in each.blocks]

    def _is_replaced_and_saved(self, disk: DiskState) -> bool:
        """Whether an old volume of it still exists and may be removed."""
        snapshots = [each for each in self.facts.snapshots if each.disk_id == disk.disk_id]
        complete = {each.snapshot_id for each in snapshots if each.is_whole}
        return any(
            each.disk_id == disk.disk_id and each.status is VolumeStatus.RETIRED and each.saved_in in complete
            for each in self.facts.volumes
        )

    def _needed_by_others(self, disk: DiskState) -> set[RecordedSnapshotId]:
        """Snapshots needed by running operations, and by clones that have no volume yet."""
        under_way = {each.operation_id for each in self.facts.unfinished}
        needed = {each.snapshot_id for each in self.facts.unfinished}
        needed |= {each.snapshot_id for each in self.facts.snapshots if each.operation_id in under_way}
        needed |= {each.from_snapshot for each in self.facts.volumes if each.status is VolumeStatus.MAKING}
        others = [each for each in self.facts.disks.values() if each.disk_id != disk.disk_id]
        needed |= {each.saved_as for each in others if each.volume_id is None}
        return {each for each in needed if each is not None}

    def _get_snapshot(self, snapshot_id: RecordedSnapshotId, disk: DiskState) -> SnapshotRecord:
        """Only recorded snapshots of this disk."""
        for each in self.facts.snapshots:
            if each.snapshot_id == snapshot_id and each.disk_id == disk.disk_id:
                if not each.status.is_usable:
                    raise Conflict(f"That snapshot of disk {disk.name!r} cannot be used: it is {each.status}.")
                return each
        raise NotFound(f"disk {disk.name!r} has no such snapshot")

    def _new_disk(self, disk_id: DiskId, name: str, size_gb: int) -> DiskState:
        self._free_name(name)
        self._within_quota(size_gb)
        return DiskState(disk_id, self.facts.user_id, self.facts.username, name, self.now, size_gb)

    def _free_name(self, name: str, else_do: str = "choose another name") -> str:
        check_disk_name(name)
        if name == NO_DISK:
            raise Invalid(f"{NO_DISK!r} means no disk; choose another name", field="disk_name")
        if any(each.name == name and not each.is_deleted for each in self.facts.disks.values()):
            raise Conflict(f"you already have a disk {name!r}; {else_do}")
        return name

    def _check_size(self, size_gb: int) -> int:
        most = self.settings.max_size_gb
        if not _MIN_SIZE_GB <= size_gb <= most:
            raise Invalid(f"invalid size {size_gb} GB (expected {_MIN_SIZE_GB} to {most})", field="size_gb")
        return size_gb

    def _within_quota(self, more_gb: int, count: int = 1) -> None:
        living = [each for each in self.facts.disks.values() if not each.is_deleted]
        wanted = {each.disk_id: each.size_gb for each in self.facts.unfinished if each.kind is OperationKind.RESIZE}
        usual = self.settings.default_size_gb  # of disks not created yet
        taken = sum(max(each.size_gb or usual, wanted.get(each.disk_id) or 0) for each in living)
        check_quota(DiskUsage(len(living), taken), self.settings, more=count, more_gb=more_gb)


def _to_be_removed(snapshot: SnapshotRecord) -> SnapshotRecord:
    """Clears earlier errors: a failed removal records its own."""
    return replace(snapshot, status=SnapshotStatus.REMOVING, error=None)
