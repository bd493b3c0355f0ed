"""Disk operations: requests, operation rows, and the records of snapshots and volumes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType
from uuid import UUID, uuid5

from gpudev.domain.ids import DiskId, ReservationId, UserId, short_id

OperationId = NewType("OperationId", UUID)
RecordedSnapshotId = NewType("RecordedSnapshotId", UUID)
"""Our own id of a snapshot, also the idempotency token of its creation."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Limits of disks, and how long their snapshots are kept."""

    default_size_gb: int = 100
    """The size of a disk that is created by its first use."""
    max_size_gb: int = 4096
    max_per_user: int = 10
    max_gb_per_user: int = 8192
    zone: str = ""
    """The zone of volumes created in advance. None: a volume is created at its first use, in the zone of that use."""
    retention: timedelta = timedelta(days=30)
    """How long a deleted disk can be undeleted."""
    snapshot_every: timedelta = timedelta(days=1)
    """Interval of snapshots of a disk in use; the end of a reservation always takes one. 0: no others."""
    keep_last: int = 5
    """How many of a disk's newest automatic snapshots are kept."""
    keep_daily_days: int = 14
    """For how many days one automatic snapshot per day is kept as well."""
    keep_asked: timedelta = timedelta(days=90)
    """How long snapshots taken by their owner are kept."""
    move_takes: timedelta = timedelta(seconds=30)
    """Planned time for creating a volume from a completed snapshot in another zone. A request that would wait longer
    than this for a node in its disk's zone starts in another zone."""
    poll_every: timedelta = timedelta(seconds=2)
    """Poll interval for long-running cloud operations."""


class OperationKind(StrEnum):
    CREATE = "create"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    UNDELETE = "undelete"
    CLONE = "clone"
    RESIZE = "resize"
    RENAME = "rename"
    DELETE = "delete"
    PURGE = "purge"
    PRUNE = "prune"
    MAKE_READY = "make_ready"
    PUT_AWAY = "put_away"

    @property
    def label(self) -> str:
        """For display."""
        return self.value.replace("_", " ")

    @property
    def is_by_system(self) -> bool:
        """Requested by the system. It waits for other operations, where a user's request would be rejected."""
        return self in _SYSTEM_KINDS


_SYSTEM_KINDS = frozenset({OperationKind.PURGE, OperationKind.PRUNE, OperationKind.MAKE_READY, OperationKind.PUT_AWAY})


class OperationState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_finished(self) -> bool:
        return self in (OperationState.DONE, OperationState.FAILED)


class SnapshotStatus(StrEnum):
    BEGINNING = "beginning"
    """Recorded; the cloud may not know it yet."""
    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    """Its creation failed."""
    LOST = "lost"
    """It existed, and the cloud no longer lists it. That may be an error of the cloud, so its record is kept."""
    REMOVING = "removing"
    REMOVED = "removed"

    @property
    def is_usable(self) -> bool:
        """It holds the volume's state at the time it was taken, or will once the cloud has completed it."""
        return self in (SnapshotStatus.PENDING, SnapshotStatus.COMPLETED)


class SnapshotReason(StrEnum):
    """Why a snapshot was taken."""

    END_OF_RESERVATION = "end of reservation"
    SCHEDULED = "scheduled"
    """Of a disk in use whose last snapshot is too old."""
    ASKED = "asked"
    BEFORE_RESTORE = "before restore"
    BEFORE_MOVE = "before move"
    FOR_CLONE = "for clone"
    IMPORTED = "imported"
    """Taken by others of a volume that was imported. It can be restored, and is never removed automatically."""


class VolumeStatus(StrEnum):
    MAKING = "making"
    KEPT = "kept"
    RETIRED = "retired"
    """Replaced by another volume; its state is in the snapshot `saved_in`."""
    REMOVED = "removed"
    """Also if it was never created."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """A disk as operations read and change it."""

    disk_id: DiskId
    user_id: UserId
    username: str
    name: str
    created_at: datetime
    size_gb: int | None = None
    volume_id: str | None = None
    zone: str | None = None
    saved_as: RecordedSnapshotId | None = None
    """The snapshot that equals the volume's state (or will be the state of a volume not yet created). None: no snapshot
    does, because a dev server could write since."""
    holder: ReservationId | None = None
    """The unreleased reservation that claims it."""
    is_deleted: bool = False
    deleted_at: datetime | None = None
    purge_started_at: datetime | None = None
    purged_at: datetime | None = None
    contents: str | None = None
    """The key of its last listing in `disk_contents`."""
    mark: int = 0
    """The row's version as read. 0: a new row."""


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    snapshot_id: RecordedSnapshotId
    disk_id: DiskId
    operation_id: OperationId | None
    """None: an imported snapshot."""
    volume_id: str
    why: SnapshotReason
    status: SnapshotStatus
    created_at: datetime
    cloud_id: str | None = None
    size_gb: int | None = None
    contents: str | None = None
    error: str | None = None
    lacks: str | None = None
    """What could not be copied from the volume, for people. The volume of such a snapshot is kept."""

    @property
    def is_whole(self) -> bool:
        """It contains everything on the volume, so the volume may be removed."""
        return self.status is SnapshotStatus.COMPLETED and self.lacks is None

    @property
    def missing_note(self) -> str | None:
        """What it lacks, for people. None: nothing known."""
        if self.lacks is None:
            return None
        return f"snapshot {short_id(self.snapshot_id)} lacks {self.lacks}; volume {self.volume_id} has them and is kept"

    @property
    def problem_note(self) -> str | None:
        """Its error, for people. None: none."""
        if self.status in (SnapshotStatus.FAILED, SnapshotStatus.LOST):
            return f"snapshot {short_id(self.snapshot_id)} failed: {self.error}"
        return self.missing_note


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """A volume that we created or are creating."""

    token: UUID
    disk_id: DiskId
    operation_id: OperationId
    """The operation that created it."""
    status: VolumeStatus
    zone: str
    size_gb: int
    made_at: datetime
    from_snapshot: RecordedSnapshotId | None = None
    volume_id: str | None = None
    retired_by: OperationId | None = None
    saved_in: RecordedSnapshotId | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    operation_id: OperationId
    kind: OperationKind
    user_id: UserId
    disk_id: DiskId
    asked_at: datetime
    state: OperationState = OperationState.WAITING
    step: str = "waiting"
    """The current step, for people."""
    blocks: frozenset[DiskId] = frozenset()
    """Disks that later operations must not touch yet."""
    attempts: int = 0
    """Failures in a row."""
    rejections: int = 0
    """How many of these were rejections by the cloud."""
    next_attempt_at: datetime | None = None
    error: str | None = None
    result: str | None = None
    finished_at: datetime | None = None
    reservation_id: ReservationId | None = None
    source_id: DiskId | None = None
    """The disk to clone."""
    snapshot_id: RecordedSnapshotId | None = None
    """To be restored or cloned."""
    size_gb: int | None = None
    zone: str | None = None
    name: str | None = None
    contents: str | None = None
    seq: int = 0
    """Order of arrival. 0: a new row."""
    version: int = 0

    def snapshot_token(self, number: int) -> RecordedSnapshotId:
        """Token of the operation's snapshot with this number: stable across restarts."""
        return RecordedSnapshotId(uuid5(self.operation_id, f"snapshot {number}"))

    @property
    def volume_token(self) -> UUID:
        return uuid5(self.operation_id, "volume")


@dataclass(frozen=True, slots=True)
class UserDisks:
    """All of one user's disks, snapshots and operations that a request is decided from."""

    user_id: UserId
    username: str
    disks: Mapping[DiskId, DiskState] = field(default_factory=dict)
    """All that are not purged, including deleted ones."""
    unfinished: tuple[Operation, ...] = ()
    snapshots: tuple[SnapshotRecord, ...] = ()
    """All that are not removed."""
    volumes: tuple[VolumeRecord, ...] = ()
    """All that are not removed."""


@dataclass(frozen=True, slots=True)
class OperationFacts:
    """The records from which one operation's next step is decided."""

    operation: Operation
    disk: DiskState
    source: DiskState | None = None
    snapshots: tuple[SnapshotRecord, ...] = ()
    """Of the disk, those the operation took or names, and those that hold the state of these disks and volumes."""
    volumes: tuple[VolumeRecord, ...] = ()
    """Of the disk, including removed ones."""
    before: Operation | None = None
    """An operation that must finish first."""


@dataclass(frozen=True, slots=True)
class OperationChanges:
    """One guarded write: all of it, or nothing if the operation or the disk has changed since it was read."""

    operation: Operation
    disk: DiskState | None = None
    snapshots: tuple[SnapshotRecord, ...] = ()
    volumes: tuple[VolumeRecord, ...] = ()
    event: str | None = None
    """A line of the disk's history."""


# Requests for operations, by people and by the system.


@dataclass(frozen=True, slots=True)
class CreateDisk:
    disk_id: DiskId
    name: str
    size_gb: int | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotDisk:
    disk_id: DiskId


@dataclass(frozen=True, slots=True)
class RestoreDisk:
    """Restore a snapshot of this disk."""

    disk_id: DiskId
    snapshot_id: RecordedSnapshotId


@dataclass(frozen=True, slots=True)
class UndeleteDisk:
    disk_id: DiskId
    name: str | None = None
    """A new name, if another disk has taken the old one."""


@dataclass(frozen=True, slots=True)
class CloneDisk:
    disk_id: DiskId
    """The new disk."""
    source_id: DiskId
    name: str
    size_gb: int | None = None
    snapshot_id: RecordedSnapshotId | None = None
    """None: the current state."""


@dataclass(frozen=True, slots=True)
class ResizeDisk:
    disk_id: DiskId
    size_gb: int


@dataclass(frozen=True, slots=True)
class RenameDisk:
    disk_id: DiskId
    name: str


@dataclass(frozen=True, slots=True)
class DeleteDisk:
    disk_id: DiskId


@dataclass(frozen=True, slots=True)
class PurgeDisk:
    disk_id: DiskId


@dataclass(frozen=True, slots=True)
class PruneDisk:
    disk_id: DiskId


@dataclass(frozen=True, slots=True)
class MakeReady:
    """Before the dev server of its reservation starts."""

    disk_id: DiskId
    reservation_id: ReservationId
    zone: str | None = None
    """The dev server's zone. None: the volume's."""


@dataclass(frozen=True, slots=True)
class PutAway:
    """After its dev server is gone, before the release."""

    disk_id: DiskId
    reservation_id: ReservationId
    contents: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotDiskInUse:
    """A snapshot of a disk that has been in use for long."""

    disk_id: DiskId
    reservation_id: ReservationId


UserDiskRequest = (
    CreateDisk | SnapshotDisk | RestoreDisk | UndeleteDisk | CloneDisk | ResizeDisk | RenameDisk | DeleteDisk
)
SystemDiskRequest = PurgeDisk | PruneDisk | SnapshotDiskInUse | MakeReady | PutAway
DiskRequest = UserDiskRequest | SystemDiskRequest
