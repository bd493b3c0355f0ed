"""The vocabulary of disk operations: what is looked at, what is asked of the cloud, and how a step may end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

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
from gpudev.ports.cloud import DISK_ID_TAG, DISK_NAME_TAGS, OWNER_TAG, RECORDED_TAG, Snapshot, SnapshotState, Volume

MAX_REJECTIONS = 3
"""Give up what the cloud has rejected this often: a limit or a passing state has changed by then, or a person must act.
What the cloud does not answer is retried indefinitely."""


@dataclass(frozen=True, slots=True)
class CloudQuery:
    """What has to be seen before a step is decided, by the cloud's ids."""

    volumes: frozenset[str] = frozenset()
    snapshots: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CloudState:
    """What was looked at. None: the cloud says that there is none."""

    volumes: Mapping[str, Volume | None] = field(default_factory=dict)
    snapshots: Mapping[str, Snapshot | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnsureVolume:
    token: UUID
    size_gb: int
    zone: str
    tags: Mapping[str, str]
    from_snapshot: str | None
    """By the cloud's id."""


@dataclass(frozen=True, slots=True)
class EnsureSnapshot:
    record: SnapshotRecord
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GrowVolume:
    volume_id: str
    size_gb: int


@dataclass(frozen=True, slots=True)
class TagVolume:
    volume_id: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RemoveVolume:
    record: VolumeRecord
    volume_id: str


@dataclass(frozen=True, slots=True)
class RemoveSnapshot:
    record: SnapshotRecord
    cloud_id: str


CloudCall = EnsureVolume | EnsureSnapshot | GrowVolume | TagVolume | RemoveVolume | RemoveSnapshot


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """Nothing is asked of the cloud; this is to be written down before anything else."""

    step: str
    disk: DiskState | None = None
    snapshots: tuple[SnapshotRecord, ...] = ()
    volumes: tuple[VolumeRecord, ...] = ()
    event: str | None = None
    """A line of the disk's history."""


@dataclass(frozen=True, slots=True)
class WaitForCloud:
    until: datetime
    why: str


@dataclass(frozen=True, slots=True)
class FinishOperation:
    result: str
    disk: DiskState | None = None


@dataclass(frozen=True, slots=True)
class FailOperation:
    reason: str


OperationStep = CloudCall | WriteRecords | WaitForCloud | FinishOperation | FailOperation


# What an operation on a disk has in sight, and the parts that several kinds of operations are made of.
#
# `saved` means: what is on the volume is in a recorded snapshot that was begun after the last dev server let go of it.


MOST_SNAPSHOTS = 2
"""How often an operation begins a snapshot that comes to nothing."""


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

    # --- what is there ---------------------------------------------------------------------------------------------

    def find_volume(self, disk: DiskState) -> Volume | None:
        """None: it never had one, or the cloud says that it is gone."""
        return None if disk.volume_id is None else self.cloud_state.volumes[disk.volume_id]

    def find_snapshot(self, snapshot_id: RecordedSnapshotId | None) -> SnapshotRecord | None:
        return next((one for one in self.facts.snapshots if one.snapshot_id == snapshot_id), None)

    def find_good_snapshot(self, snapshot_id: RecordedSnapshotId | None) -> SnapshotRecord | None:
        found = self.find_snapshot(snapshot_id)
        return found if found is not None and found.status.is_usable else None

    def find_made_volume(self) -> VolumeRecord | None:
        """The volume that this operation has made."""
        return next((one for one in self._own_volumes() if one.volume_id is not None), None)

    def had_volume(self) -> bool:
        return any(one.volume_id is not None for one in self.facts.volumes)

    def tags(self, disk: DiskState) -> dict[str, str]:
        return {OWNER_TAG: disk.username, DISK_NAME_TAGS[0]: disk.name, DISK_ID_TAG: str(disk.disk_id)}

    # --- steps that come before all others -------------------------------------------------------------------------

    def record_changed_snapshots(self) -> OperationStep | None:
        """What became of snapshots since it was last written down."""
        changed = tuple(
            new
            for one in self.facts.snapshots
            if one.cloud_id in self.cloud_state.snapshots
            and (new := update_snapshot_record(one, self.cloud_state)) != one
        )
        if not changed:
            return None
        wrong = [told for one in changed if (told := describe_problem(one)) is not None]
        return WriteRecords("looking at snapshots", snapshots=changed, event="; ".join(wrong) or None)

    def resume_begun(self) -> OperationStep | None:
        """What the cloud was asked for and may have made, though its answer was lost: it is asked for again before
        anything else is decided, so that nothing is made and forgotten."""
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
        """Before anybody writes to it."""
        return None if volume.busy_reason is None else self._poll_again(volume.busy_reason)

    def until_complete(self, record: SnapshotRecord) -> WaitForCloud | None:
        if record.status is SnapshotStatus.COMPLETED:
            return None
        return self._poll_again("the snapshot is being taken")

    def save(self, disk: DiskState, why: SnapshotReason) -> OperationStep | SnapshotRecord:
        """A snapshot of exactly what is on its volume, which nobody has: the one there is, or a new one. What a clone
        was made from does not count: it goes with the other disk."""
        saved = self.find_good_snapshot(disk.saved_as)
        return saved if saved and saved.disk_id == disk.disk_id else self.own_snapshot(disk, why)

    def own_snapshot(self, disk: DiskState, why: SnapshotReason) -> OperationStep | SnapshotRecord:
        own = [one for one in self._own_snapshots() if one.disk_id == disk.disk_id]
        taken = next((one for one in own if one.status.is_usable), None)
        if taken is not None:
            return taken
        if len(own) >= MOST_SNAPSHOTS:
            return FailOperation(f"no snapshot could be taken: {own[-1].error or own[-1].status}")
        assert disk.volume_id is not None  # nobody takes a snapshot of nothing
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
        """Written down before it is asked for; `begun` goes on from there."""
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
        """Volumes that others took the place of, once what was on them is in a finished snapshot of ours. What the
        cloud does not let go is left to the next pruning."""
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
            if saved is None or saved.disk_id != volume.disk_id or not is_whole(saved):
                continue
            if not there.attached_to and operation.rejections < MAX_REJECTIONS:
                return RemoveVolume(volume, there.volume_id)
        return None

    def _poll_again(self, why: str) -> WaitForCloud:
        return WaitForCloud(self.now + self.settings.poll_every, why)

    def _own_volumes(self) -> Iterable[VolumeRecord]:
        mine = self.operation.operation_id
        return (one for one in self.facts.volumes if one.operation_id == mine)

    def _own_snapshots(self) -> list[SnapshotRecord]:
        mine = [one for one in self.facts.snapshots if one.operation_id == self.operation.operation_id]
        return sorted(mine, key=lambda one: one.created_at)

    def _ensure_volume(self, record: VolumeRecord) -> OperationStep:
        base = self.find_snapshot(record.from_snapshot)
        if record.from_snapshot is not None and (base is None or base.cloud_id is None):
            return FailOperation("the snapshot is gone")  # and never an empty volume in its place
        return EnsureVolume(
            record.token,
            record.size_gb,
            record.zone,
            self.tags(self.disk),
            None if base is None else base.cloud_id,
        )

    def _ensure_snapshot(self, record: SnapshotRecord) -> EnsureSnapshot:
        disk = next(one for one in (self.disk, self.facts.source) if one and one.disk_id == record.disk_id)
        return EnsureSnapshot(record, {**self.tags(disk), RECORDED_TAG: str(record.snapshot_id)})


def find_not_yet_visible(facts: OperationFacts, cloud_state: CloudState, since: datetime) -> str | None:
    """What was begun after `since` and is not shown, in words: that the cloud does not show it yet says nothing about
    it. Whoever made it knows better, but may have ended meanwhile."""
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


def update_snapshot_record(record: SnapshotRecord, cloud_state: CloudState) -> SnapshotRecord:
    """A snapshot's record, as what was seen of it makes it."""
    if record.cloud_id is None or not record.status.is_usable:
        return record
    found = cloud_state.snapshots[record.cloud_id]
    if found is None:
        return replace(record, status=SnapshotStatus.LOST, error="the cloud says that it is gone")
    if found.state is SnapshotState.ERROR:
        return replace(record, status=SnapshotStatus.FAILED, error=found.error or "the cloud could not finish it")
    if found.state is SnapshotState.COMPLETED:
        return replace(record, status=SnapshotStatus.COMPLETED, size_gb=found.size_gb, lacks=found.lacks)
    return record


def is_whole(record: SnapshotRecord) -> bool:
    """Everything that was on the volume is in it: the volume may go."""
    return record.status is SnapshotStatus.COMPLETED and record.lacks is None


def describe_missing(record: SnapshotRecord) -> str | None:
    """In words. None: nothing, as far as is known."""
    if record.lacks is None:
        return None
    return (
        f"snapshot {short_id(record.snapshot_id)} lacks {record.lacks}; volume {record.volume_id} has them and is kept"
    )


def describe_problem(record: SnapshotRecord) -> str | None:
    """With a snapshot that was begun: whoever counts on it should hear of it. None: nothing."""
    if record.status in (SnapshotStatus.FAILED, SnapshotStatus.LOST):
        return f"snapshot {short_id(record.snapshot_id)} came to nothing: {record.error}"
    return describe_missing(record)
