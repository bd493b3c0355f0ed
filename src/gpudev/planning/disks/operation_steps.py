"""The next step of a disk operation, decided from records and the cloud's state, never from memory.

Each step is idempotent and leaves complete records, so an operation continues after a crash at any point. Before a
volume is given up, its state is in a completed, recorded snapshot. Only objects that a record names as ours are
removed. `workflows.disks.operations` calls the cloud.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from gpudev.domain.disks.operations import (
    DiskSettings,
    DiskState,
    Operation,
    OperationFacts,
    OperationKind,
    RecordedSnapshotId,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    VolumeRecord,
    VolumeStatus,
)
from gpudev.domain.ids import short_id
from gpudev.planning.disks.operation_results import (
    MAX_REJECTIONS,
    CloudQuery,
    CloudState,
    EnsureSnapshot,
    EnsureVolume,
    FailOperation,
    FinishOperation,
    GrowVolume,
    OperationStep,
    RemoveSnapshot,
    RemoveVolume,
    TagVolume,
    WaitForCloud,
    WriteRecords,
    update_snapshot_record,
)
from gpudev.ports.cloud import DISK_ID_TAG, DISK_NAME_TAGS, OWNER_TAG, RECORDED_TAG, Volume

_NEEDS_NO_CLOUD_STATE = frozenset({OperationKind.DELETE, OperationKind.UNDELETE, OperationKind.CREATE})


def plan_cloud_query(facts: OperationFacts) -> CloudQuery:
    operation = facts.operation
    if operation.kind in _NEEDS_NO_CLOUD_STATE or facts.before is not None:
        return CloudQuery()
    disks = [disk for disk in (facts.disk, facts.source) if disk is not None]
    retired = [each for each in facts.volumes if each.status is VolumeStatus.RETIRED]
    volumes = {disk.volume_id for disk in disks} | {each.volume_id for each in retired}
    wanted = {disk.saved_as for disk in disks} | {each.saved_in for each in retired} | {operation.snapshot_id}
    snapshots = {
        each.cloud_id
        for each in facts.snapshots
        if each.status.is_usable and (each.snapshot_id in wanted or each.operation_id == operation.operation_id)
    }
    return CloudQuery(
        frozenset(each for each in volumes if each is not None),
        frozenset(each for each in snapshots if each is not None),
    )


def find_not_yet_visible(facts: OperationFacts, cloud_state: CloudState, since: datetime) -> str | None:
    """An object begun after `since` that the cloud does not show, for people. Its absence means nothing yet: clouds
    list new objects with a delay."""
    for volume in facts.volumes:
        if volume.made_at > since and volume.volume_id and cloud_state.volumes.get(volume.volume_id, volume) is None:
            return f"volume {volume.volume_id} cannot be seen yet"
    for snapshot in facts.snapshots:
        if (
            snapshot.created_at > since
            and snapshot.cloud_id
            and cloud_state.snapshots.get(snapshot.cloud_id, snapshot) is None
        ):
            return f"snapshot {snapshot.cloud_id} cannot be seen yet"
    return None


def next_step(facts: OperationFacts, cloud_state: CloudState, now: datetime, settings: DiskSettings) -> OperationStep:
    """For an unfinished operation, with everything of `plan_cloud_query` read."""
    if facts.before is not None:
        return WaitForCloud(now + settings.poll_every, f"waits for {facts.before.kind.label} ({facts.before.step})")
    context = OperationContext(facts, cloud_state, now, settings)
    return context.record_changed_snapshots() or context.resume_begun() or _next_of_kind(context)


def _next_of_kind(context: "OperationContext") -> OperationStep:
    kind = context.operation.kind
    match kind:
        case OperationKind.CREATE:
            return _create(context)
        case OperationKind.SNAPSHOT:
            return _snapshot(context)
        case OperationKind.RESTORE:
            return _restore(context)
        case OperationKind.CLONE:
            return _clone(context)
        case OperationKind.RESIZE:
            return _resize(context)
        case OperationKind.MAKE_READY:
            return _make_ready(context)
        case OperationKind.PUT_AWAY:
            return _put_away(context)
        case OperationKind.PURGE:
            return _purge(context)
        case OperationKind.PRUNE:
            return _prune(context)
        case OperationKind.RENAME | OperationKind.DELETE | OperationKind.UNDELETE:
            return _metadata_only(context)
        case _:
            assert_never(kind)


def _create(context: "OperationContext") -> OperationStep:
    disk, zone = context.disk, context.operation.zone
    if disk.volume_id is not None:
        return FinishOperation(f"{disk.size_gb} GB in {disk.zone}")
    if zone is None:
        return FinishOperation("its volume is made when it is first used")
    return context.new_volume(None, zone)


def _snapshot(context: "OperationContext") -> OperationStep:
    if context.find_volume(context.disk) is None:
        return FailOperation("no volume to take a snapshot of")
    by_itself = context.operation.reservation_id is not None
    taken = context.own_snapshot(context.disk, SnapshotReason.SCHEDULED if by_itself else SnapshotReason.ASKED)
    if not isinstance(taken, SnapshotRecord):
        return taken
    if by_itself:  # no user waits for its completion
        return FinishOperation(_snapshot_note(taken))
    return context.until_complete(taken) or FinishOperation(_snapshot_note(taken))


def _restore(context: "OperationContext") -> OperationStep:
    disk = context.disk
    made = context.find_made_volume()
    if made is not None:
        restored = f"restored in {made.zone}{_missing_note(context, made)}"
        return context.removal_of_replaced() or FinishOperation(_with_leftover_note(context, restored))
    chosen = context.find_good_snapshot(context.operation.snapshot_id)
    if chosen is None:
        return FailOperation("the snapshot is gone")
    if (waiting := context.until_complete(chosen)) is not None:
        return waiting
    volume = context.find_volume(disk)
    if volume is not None:
        if (attached := context.until_detached(volume)) is not None:
            return attached
        saved = context.save(disk, SnapshotReason.BEFORE_RESTORE)
        if not isinstance(saved, SnapshotRecord):
            return saved
        if (waiting := context.until_complete(saved)) is not None:
            return waiting
    zone = (volume and volume.zone) or disk.zone or context.settings.zone
    if not zone:
        later = replace(disk, volume_id=None, saved_as=chosen.snapshot_id)
        return FinishOperation("its volume is made from the snapshot when it is next used", later)
    return context.new_volume(chosen, zone)


def _clone(context: "OperationContext") -> OperationStep:
    source, disk = context.facts.source, context.disk
    made = context.find_made_volume()
    if made is not None:
        return FinishOperation(f"{made.size_gb} GB in {made.zone}{_missing_note(context, made)}")
    if source is None:
        return FailOperation("the disk to clone is gone")
    base = _base_of_clone(context)
    if not isinstance(base, SnapshotRecord):
        return base
    if (waiting := context.until_complete(base)) is not None:
        return waiting
    zone = source.zone or context.settings.zone
    if not zone:
        return FinishOperation("its volume is made when it is first used", replace(disk, saved_as=base.snapshot_id))
    return context.new_volume(base, zone)


def _base_of_clone(context: "OperationContext") -> OperationStep | SnapshotRecord:
    source = context.facts.source
    assert source is not None  # checked by the caller
    if context.operation.snapshot_id is not None:
        return context.find_good_snapshot(context.operation.snapshot_id) or FailOperation("the snapshot is gone")
    volume = context.find_volume(source)
    if volume is None:
        return context.find_good_snapshot(source.saved_as) or FailOperation(f"what was on disk {source.name!r} is gone")
    return context.until_detached(volume) or context.save(source, SnapshotReason.FOR_CLONE)


def _resize(context: "OperationContext") -> OperationStep:
    disk, size = context.disk, context.operation.size_gb
    assert size is not None  # set for every resize
    volume = context.find_volume(disk)
    if volume is None and disk.volume_id is not None:
        return FailOperation(f"its volume {disk.volume_id} is gone")
    if volume is not None and volume.size_gb < size:
        return GrowVolume(volume.volume_id, size)
    return FinishOperation(f"{size} GB", replace(disk, size_gb=max(size, disk.size_gb or 0)))


def _make_ready(context: "OperationContext") -> OperationStep:
    disk, operation = context.disk, context.operation
    if disk.is_deleted:
        return FailOperation(f"disk {disk.name!r} is deleted")
    if disk.holder != operation.reservation_id:  # no dev server uses it, so its snapshot stays valid
        return context.removal_of_replaced() or FinishOperation("the reservation ended before it was ready")
    made = context.find_made_volume()
    if made is not None:
        how = "new" if made.from_snapshot is None else "from a snapshot"
        return context.removal_of_replaced() or _ready(context, made.zone, how)
    volume = context.find_volume(disk)
    if volume is None:
        return _make_from_records(context)
    if (attached := context.until_detached(volume)) is not None:
        return attached
    if (busy := context.until_quiet(volume)) is not None:
        return busy
    if operation.zone is None or volume.zone is None or volume.zone == operation.zone:
        return _ready(context, volume.zone, "as it was left")
    saved = context.save(disk, SnapshotReason.BEFORE_MOVE)
    if not isinstance(saved, SnapshotRecord):
        return saved
    if (waiting := context.until_complete(saved)) is not None:
        return waiting
    if saved.lacks is not None:
        return FailOperation(f"it cannot be moved to {operation.zone}: its snapshot lacks {saved.lacks}")
    return context.new_volume(saved, operation.zone)


def _make_from_records(context: "OperationContext") -> OperationStep:
    """There is no volume: it was never created, or it vanished. Only a snapshot of its exact last state replaces it
    automatically: an empty volume in place of a user's files would look like data loss, and soon be one."""
    disk = context.disk
    base = context.find_good_snapshot(disk.saved_as)
    if disk.volume_id is not None and (base is None or base.lacks is not None):
        return FailOperation(
            f"the volume {disk.volume_id} of disk {disk.name!r} is gone, and no snapshot holds what was last on it; "
            "restore one of its snapshots to go on from there"
        )
    if base is None and (disk.saved_as is not None or context.had_volume()):
        return FailOperation(f"nobody knows where the files of disk {disk.name!r} are; an operator has to look")
    if base is not None and (waiting := context.until_complete(base)) is not None:
        return waiting
    zone = context.operation.zone or disk.zone or context.settings.zone
    return (
        context.new_volume(base, zone) if zone else FailOperation("nobody said in which zone its volume is to be made")
    )


def _ready(context: "OperationContext", zone: str | None, how: str) -> OperationStep:
    """From here on a dev server may write, so no snapshot equals the volume."""
    disk = replace(context.disk, saved_as=None, zone=zone or context.disk.zone)
    return FinishOperation(_with_leftover_note(context, f"volume {disk.volume_id} is ready, {how}"), disk)


def _put_away(context: "OperationContext") -> OperationStep:
    """Also if the reservation was released meanwhile (its patience with the cloud is limited): the disk's next user
    waits for this operation, so nothing was written since."""
    disk = context.disk
    volume = context.find_volume(disk)
    if volume is None:
        reason = "nothing was ever on it" if disk.volume_id is None else f"its volume {disk.volume_id} is gone"
        return FinishOperation(f"no snapshot: {reason}")
    if (attached := context.until_detached(volume)) is not None:
        return attached
    saved = context.save(disk, SnapshotReason.END_OF_RESERVATION)
    if isinstance(saved, FailOperation):  # the volume still has the files, and the disk must become free
        return FinishOperation(f"no snapshot: {saved.reason}")
    if not isinstance(saved, SnapshotRecord):
        return saved
    contents = context.operation.contents or disk.contents
    return FinishOperation(_snapshot_note(saved), replace(disk, contents=contents))


def _prune(context: "OperationContext") -> OperationStep:
    return (
        _remove_snapshots(context)
        or context.removal_of_replaced()
        or _find_unremoved(context)
        or FinishOperation("done")
    )


def _purge(context: "OperationContext") -> OperationStep:
    disk = context.disk
    if disk.purge_started_at is None:
        return FailOperation("nobody said that it may be removed")
    if (step := _remove_snapshots(context)) is not None:
        return step
    for volume in context.facts.volumes:
        if volume.status is not VolumeStatus.REMOVED:
            if volume.volume_id is None:
                return WriteRecords("removing the volume", volumes=(replace(volume, status=VolumeStatus.REMOVED),))
            return RemoveVolume(volume, volume.volume_id)
    if (stayed := _find_unremoved(context)) is not None:
        return stayed
    left = f"; volume {disk.volume_id} was not made here and is left" if disk.volume_id is not None else ""
    return FinishOperation(f"removed{left}", replace(disk, purged_at=context.now))


def _remove_snapshots(context: "OperationContext") -> OperationStep | None:
    """Only those marked when the operation was accepted. A snapshot that the cloud refuses to remove (say, because an
    image uses it) does not block the others."""
    for record in _marked_snapshots(context):
        if record.error is None:
            if record.cloud_id is None:
                return WriteRecords("removing snapshots", snapshots=(replace(record, status=SnapshotStatus.REMOVED),))
            return RemoveSnapshot(record, record.cloud_id)
    return None


def _find_unremoved(context: "OperationContext") -> FailOperation | None:
    """The next prune or purge retries it."""
    refused = [each for each in _marked_snapshots(context) if each.error is not None]
    if not refused:
        return None
    others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return FailOperation(f"snapshot {refused[0].cloud_id} could not be removed{others}: {refused[0].error}")


def _marked_snapshots(context: "OperationContext") -> list[SnapshotRecord]:
    operation_id = [each for each in context.facts.snapshots if each.disk_id == context.disk.disk_id]
    return [each for each in operation_id if each.status is SnapshotStatus.REMOVING]


def _metadata_only(context: "OperationContext") -> OperationStep:
    """The records were changed on acceptance; a new name is also written to the volume's tags."""
    if context.operation.kind is OperationKind.RENAME:
        volume, tags = context.find_volume(context.disk), context.tags(context.disk)
        if volume is not None and not tags.items() <= volume.tags.items():
            return TagVolume(volume.volume_id, tags)
    return FinishOperation("done")


def _missing_note(context: "OperationContext", made: VolumeRecord) -> str:
    base = context.find_snapshot(made.from_snapshot)
    return "" if base is None or base.lacks is None else f", less {base.lacks}"


def _snapshot_note(snapshot: SnapshotRecord) -> str:
    lacks = "" if snapshot.lacks is None else f", which lacks {snapshot.lacks}"
    return f"snapshot {short_id(snapshot.snapshot_id)}{lacks}"


def _with_leftover_note(context: "OperationContext", result: str) -> str:
    operation_id = context.operation.operation_id
    for each in context.facts.volumes:
        if each.retired_by == operation_id and each.status is VolumeStatus.RETIRED:
            return f"{result}; the old volume {each.volume_id} is still there"
    return result


# Context of an operation, and steps shared by several kinds of operations. `saved` means: a recorded snapshot, begun
# after the last dev server was gone, equals the volume.


MOST_SNAPSHOTS = 2
"""How many failed snapshots an operation allows."""


@dataclass(frozen=True, slots=True)
class OperationContext:
    facts: OperationFacts
    cloud_state: CloudState
    now: datetime
    settings: DiskSettings

    @property
    def operation(self) -> Operation:
        return self.facts.operation

    @property
    def disk(self) -> DiskState:
        return self.facts.disk

    # --- lookups ---------------------------------------------------------------------------------------------------

    def find_volume(self, disk: DiskState) -> Volume | None:
        """None: it never had one, or the cloud no longer has it."""
        return None if disk.volume_id is None else self.cloud_state.volumes[disk.volume_id]

    def find_snapshot(self, snapshot_id: RecordedSnapshotId | None) -> SnapshotRecord | None:
        return next((each for each in self.facts.snapshots if each.snapshot_id == snapshot_id), None)

    def find_good_snapshot(self, snapshot_id: RecordedSnapshotId | None) -> SnapshotRecord | None:
        found = self.find_snapshot(snapshot_id)
        return found if found is not None and found.status.is_usable else None

    def find_made_volume(self) -> VolumeRecord | None:
        """The volume that this operation created."""
        return next((each for each in self._own_volumes() if each.volume_id is not None), None)

    def had_volume(self) -> bool:
        return any(each.volume_id is not None for each in self.facts.volumes)

    def tags(self, disk: DiskState) -> dict[str, str]:
        return {OWNER_TAG: disk.username, DISK_NAME_TAGS[0]: disk.name, DISK_ID_TAG: str(disk.disk_id)}

    # --- steps that come before all others -------------------------------------------------------------------------

    def record_changed_snapshots(self) -> OperationStep | None:
        """Records changes of snapshots since the last write."""
        changed = tuple(
            new
            for each in self.facts.snapshots
            if each.cloud_id in self.cloud_state.snapshots
            and (new := update_snapshot_record(each, self.cloud_state)) != each
        )
        if not changed:
            return None
        wrong = [note for each in changed if (note := each.problem_note) is not None]
        return WriteRecords("looking at snapshots", snapshots=changed, event="; ".join(wrong) or None)

    def resume_begun(self) -> OperationStep | None:
        """Repeats calls whose answer may have been lost, before anything else is decided, so that no created object is
        forgotten."""
        for volume in self._own_volumes():
            if volume.status is VolumeStatus.MAKING:
                return self._ensure_volume(volume)
        for snapshot in self._own_snapshots():
            if snapshot.status is SnapshotStatus.BEGINNING:
                return self._ensure_snapshot(snapshot)
        return None

    # --- parts -----------------------------------------------------------------------------------------------------

    def until_detached(self, volume: Volume) -> WaitForCloud | None:
        if not volume.attached_to:
            return None
        return self._poll_again(f"volume {volume.volume_id} is still attached to {', '.join(volume.attached_to)}")

    def until_quiet(self, volume: Volume) -> WaitForCloud | None:
        """Waits until nothing changes the volume."""
        return None if volume.busy_reason is None else self._poll_again(volume.busy_reason)

    def until_complete(self, record: SnapshotRecord) -> WaitForCloud | None:
        if record.status is SnapshotStatus.COMPLETED:
            return None
        return self._poll_again("the snapshot is being taken")

    def save(self, disk: DiskState, why: SnapshotReason) -> OperationStep | SnapshotRecord:
        """A snapshot that equals its detached volume: the existing one, or a new one. The snapshot a clone was created
        from does not count: it belongs to the other disk."""
        saved = self.find_good_snapshot(disk.saved_as)
        return saved if saved and saved.disk_id == disk.disk_id else self.own_snapshot(disk, why)

    def own_snapshot(self, disk: DiskState, why: SnapshotReason) -> OperationStep | SnapshotRecord:
        own = [each for each in self._own_snapshots() if each.disk_id == disk.disk_id]
        taken = next((each for each in own if each.status.is_usable), None)
        if taken is not None:
            return taken
        if len(own) >= MOST_SNAPSHOTS:
            return FailOperation(f"no snapshot could be taken: {own[-1].error or own[-1].status}")
        assert disk.volume_id is not None  # checked by the caller
        operation = self.operation
        record = SnapshotRecord(
            operation.snapshot_token(len(own)),
            disk.disk_id,
            operation.operation_id,
            disk.volume_id,
            why,
            SnapshotStatus.BEGINNING,
            self.now,
            contents=operation.contents,
        )
        return WriteRecords("taking a snapshot", snapshots=(record,))

    def new_volume(self, base: SnapshotRecord | None, zone: str) -> OperationStep:
        """Recorded before the call; `resume_begun` makes the call."""
        operation, disk = self.operation, self.disk
        size = max(disk.size_gb or self.settings.default_size_gb, (base and base.size_gb) or 0)
        record = VolumeRecord(
            operation.volume_token,
            disk.disk_id,
            operation.operation_id,
            VolumeStatus.MAKING,
            zone,
            size,
            self.now,
            from_snapshot=None if base is None else base.snapshot_id,
        )
        how = "making a volume" if base is None else "restoring its snapshot"
        return WriteRecords(f"{how} in {zone}", volumes=(record,))

    def removal_of_replaced(self) -> OperationStep | None:
        """Removes replaced volumes, once a completed snapshot of ours has their state. What the cloud refuses to remove
        is left to the next pruning."""
        operation = self.operation
        for volume in self.facts.volumes:
            if volume.status is not VolumeStatus.RETIRED:
                continue
            if operation.kind is not OperationKind.PRUNE and volume.retired_by != operation.operation_id:
                continue
            there = None if volume.volume_id is None else self.cloud_state.volumes[volume.volume_id]
            if there is None:
                return WriteRecords("removing the old volume", volumes=(replace(volume, status=VolumeStatus.REMOVED),))
            saved = self.find_snapshot(volume.saved_in)
            if saved is None or saved.disk_id != volume.disk_id or not saved.is_whole:
                continue
            if not there.attached_to and operation.rejections < MAX_REJECTIONS:
                return RemoveVolume(volume, there.volume_id)
        return None

    def _poll_again(self, why: str) -> WaitForCloud:
        return WaitForCloud(self.now + self.settings.poll_every, why)

    def _own_volumes(self) -> Iterable[VolumeRecord]:
        operation_id = self.operation.operation_id
        return (each for each in self.facts.volumes if each.operation_id == operation_id)

    def _own_snapshots(self) -> list[SnapshotRecord]:
        operation_id = [each for each in self.facts.snapshots if each.operation_id == self.operation.operation_id]
        return sorted(operation_id, key=lambda each: each.created_at)

    def _ensure_volume(self, record: VolumeRecord) -> OperationStep:
        base = self.find_snapshot(record.from_snapshot)
        if record.from_snapshot is not None and (base is None or base.cloud_id is None):
            return FailOperation("the snapshot is gone")  # never create an empty volume instead
        return EnsureVolume(
            record.token,
            record.size_gb,
            record.zone,
            self.tags(self.disk),
            None if base is None else base.cloud_id,
        )

    def _ensure_snapshot(self, record: SnapshotRecord) -> EnsureSnapshot:
        disk = next(each for each in (self.disk, self.facts.source) if each and each.disk_id == record.disk_id)
        return EnsureSnapshot(record, {**self.tags(disk), RECORDED_TAG: str(record.snapshot_id)})
