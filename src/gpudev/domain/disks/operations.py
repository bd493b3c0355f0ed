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
"""Our own id of a snapshot, which is also the token of its creation."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Limits of disks, and how long their snapshots are kept."""

    default_size_gb: int = 100
    """Of a disk that is created by using it."""
    min_size_gb: int = 1
    max_size_gb: int = 4096
    max_per_user: int = 10
    max_gb_per_user: int = 8192
    zone: str = ""
    """For volumes that are created in advance. None: each is created at its first use, in the zone of that."""
    retention: timedelta = timedelta(days=30)
    """How long a deleted disk can be restored."""
    snapshot_every: timedelta = timedelta(days=1)
    """Of a disk in use; the end of a reservation takes one anyway. 0: none in between."""
    keep_last: int = 5
    """How many of a disk's newest automatic snapshots are kept…"""
    keep_daily_days: int = 14
    """…and besides them, one for each of this many days."""
    keep_asked: timedelta = timedelta(days=90)
    """How long snapshots are kept that their owner asked for."""
    move_takes: timedelta = timedelta(seconds=30)
    """What the plan allows for creating a volume from a finished snapshot in another zone. A request that would wait
    longer for a node near its disk starts elsewhere."""
    poll_every: timedelta = timedelta(seconds=2)
    """How often the cloud is asked about something that takes time."""


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
        """For people to read."""
        return self.value.replace("_", " ")

    @property
    def is_by_system(self) -> bool:
        """The system does it by itself; it waits its turn where a person would be refused."""
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
    """Recorded; the cloud may or may not have heard of it."""
    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    """It never became one."""
    LOST = "lost"
    """It was one, and the cloud says that there is none. That may be a mistake, so it is not tidied up either."""
    REMOVING = "removing"
    REMOVED = "removed"

    @property
    def is_usable(self) -> bool:
        """It holds what was on the volume when it was taken, or will as soon as the cloud has finished it."""
        return self in (SnapshotStatus.PENDING, SnapshotStatus.COMPLETED)


class SnapshotReason(StrEnum):
    """What a snapshot was taken for."""

    END_OF_RESERVATION = "end of reservation"
    SCHEDULED = "scheduled"
    """The disk is in use, and was not kept for long."""
    ASKED = "asked"
    BEFORE_RESTORE = "before restore"
    BEFORE_MOVE = "before move"
    FOR_CLONE = "for clone"


class VolumeStatus(StrEnum):
    MAKING = "making"
    KEPT = "kept"
    RETIRED = "retired"
    """Another volume took its place; what was on it is in the snapshot `saved_in`."""
    REMOVED = "removed"
    """Also one that was never made."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """A disk as operations see and change it."""

    disk_id: DiskId
    user_id: UserId
    username: str
    name: str
    created_at: datetime
    size_gb: int | None = None
    volume_id: str | None = None
    zone: str | None = None
    saved_as: RecordedSnapshotId | None = None
    """The snapshot that holds exactly what is on the volume (or will be, where there is none yet). None: no snapshot
    does, because a dev server could write since."""
    holder: ReservationId | None = None
    """The reservation that has it and is not released."""
    is_deleted: bool = False
    deleted_at: datetime | None = None
    purge_started_at: datetime | None = None
    purged_at: datetime | None = None
    contents: str | None = None
    """Where the listing of what was last on it is kept."""
    mark: int = 0
    """The row's version as it was read. 0: it is new."""


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    snapshot_id: RecordedSnapshotId
    disk_id: DiskId
    operation_id: OperationId
    volume_id: str
    why: SnapshotReason
    status: SnapshotStatus
    created_at: datetime
    cloud_id: str | None = None
    size_gb: int | None = None
    contents: str | None = None
    error: str | None = None
    lacks: str | None = None
    """What was on the volume and could not be taken along, in words. The volume of such a one is kept."""

    @property
    def is_whole(self) -> bool:
        """Everything that was on the volume is in it: the volume may go."""
        return self.status is SnapshotStatus.COMPLETED and self.lacks is None

    @property
    def missing_note(self) -> str | None:
        """What it lacks, for people. None: nothing, as far as is known."""
        if self.lacks is None:
            return None
        return f"snapshot {short_id(self.snapshot_id)} lacks {self.lacks}; volume {self.volume_id} has them and is kept"

    @property
    def problem_note(self) -> str | None:
        """What went wrong with it, for people who count on it. None: nothing."""
        if self.status in (SnapshotStatus.FAILED, SnapshotStatus.LOST):
            return f"snapshot {short_id(self.snapshot_id)} came to nothing: {self.error}"
        return self.missing_note


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """A volume that we made, or are making."""

    token: UUID
    disk_id: DiskId
    operation_id: OperationId
    """That made it."""
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
    """What is going on, in words."""
    blocks: frozenset[DiskId] = frozenset()
    """Disks that no later operation may touch yet."""
    attempts: int = 0
    """Failures in a row."""
    rejections: int = 0
    """Of these, how often the cloud said no."""
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
    """Order of arrival. 0: it is new."""
    version: int = 0

    def snapshot_token(self, number: int) -> RecordedSnapshotId:
        """Of the number-th snapshot that it takes: the same after every restart."""
        return RecordedSnapshotId(uuid5(self.operation_id, f"snapshot {number}"))

    @property
    def volume_token(self) -> UUID:
        return uuid5(self.operation_id, "volume")


@dataclass(frozen=True, slots=True)
class UserDisks:
    """Everything of one user that a request is decided by."""

    user_id: UserId
    username: str
    disks: Mapping[DiskId, DiskState] = field(default_factory=dict)
    """All that are not purged, the deleted ones too."""
    unfinished: tuple[Operation, ...] = ()
    snapshots: tuple[SnapshotRecord, ...] = ()
    """All that are not removed."""
    volumes: tuple[VolumeRecord, ...] = ()
    """All that are not removed."""


@dataclass(frozen=True, slots=True)
class OperationFacts:
    """Everything that is recorded and one operation's next step is decided by."""

    operation: Operation
    disk: DiskState
    source: DiskState | None = None
    snapshots: tuple[SnapshotRecord, ...] = ()
    """Of the disk, those the operation took or names, and those that disks and volumes here are saved in."""
    volumes: tuple[VolumeRecord, ...] = ()
    """Of the disk, those removed too."""
    before: Operation | None = None
    """One that must come first."""


@dataclass(frozen=True, slots=True)
class OperationChanges:
    """One write: all of it, or nothing where the operation or the disk is no longer as it was read."""

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
    """Back to what a snapshot of this disk holds."""

    disk_id: DiskId
    snapshot_id: RecordedSnapshotId


@dataclass(frozen=True, slots=True)
class UndeleteDisk:
    disk_id: DiskId
    name: str | None = None
    """A new one, where another disk is called so by now."""


@dataclass(frozen=True, slots=True)
class CloneDisk:
    disk_id: DiskId
    """Of the new one."""
    source_id: DiskId
    name: str
    size_gb: int | None = None
    snapshot_id: RecordedSnapshotId | None = None
    """None: as it is now."""


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
    """Before the dev server of the reservation that holds it starts."""

    disk_id: DiskId
    reservation_id: ReservationId
    zone: str | None = None
    """Where the dev server will be. None: wherever the volume is."""


@dataclass(frozen=True, slots=True)
class PutAway:
    """After its dev server is gone and before it is released."""

    disk_id: DiskId
    reservation_id: ReservationId
    contents: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotDiskInUse:
    """A snapshot of a disk that a dev server has had for long."""

    disk_id: DiskId
    reservation_id: ReservationId


UserDiskRequest = (
    CreateDisk | SnapshotDisk | RestoreDisk | UndeleteDisk | CloneDisk | ResizeDisk | RenameDisk | DeleteDisk
)
SystemDiskRequest = PurgeDisk | PruneDisk | SnapshotDiskInUse | MakeReady | PutAway
DiskRequest = UserDiskRequest | SystemDiskRequest
