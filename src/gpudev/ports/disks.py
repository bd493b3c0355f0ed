"""Stores of disks: operations, attachments, contents, locations, reconciled records."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from gpudev.domain.disks.contents import Contents
from gpudev.domain.disks.operations import (
    DiskState,
    Operation,
    OperationChanges,
    OperationFacts,
    OperationId,
    RecordedSnapshotId,
    SnapshotRecord,
    UserDisks,
)
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.ports.cloud import Volume

Decide = Callable[[UserDisks], OperationChanges | None]
"""Pure: it is called while all of a user's disks are locked. None: there is nothing to do."""


@dataclass(frozen=True, slots=True)
class DiskMaintenance:
    """A disk that time may have decided something about."""

    user_id: UserId
    disk_id: DiskId


@dataclass(frozen=True, slots=True)
class DiskInUse:
    """A disk that a dev server has."""

    user_id: UserId
    disk_id: DiskId
    reservation_id: ReservationId


@dataclass(frozen=True, slots=True)
class DiskOverview:
    """A disk as its owner sees it."""

    state: DiskState
    last_used: datetime | None = None
    snapshot_count: int = 0
    """Of those that can be restored."""
    last_snapshot_at: datetime | None = None
    is_backing_up: bool = False
    """A snapshot of it is not finished yet."""
    latest: Operation | None = None
    """Under way, or else the last that was asked for."""


@dataclass(frozen=True, slots=True)
class DiskEvent:
    """A line of a disk's history."""

    at: datetime
    kind: str
    message: str
    by: str


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    """What was in a snapshot."""

    snapshot_id: RecordedSnapshotId
    as_of: datetime
    contents: Contents
    is_latest: bool = True
    """False: shown in place of what was last on the disk, which is in a later snapshot that nobody looked into."""


@dataclass(frozen=True, slots=True)
class ContentsTotals:
    files: int
    size_bytes: int


class DiskViews(Protocol):
    """What only looks at disks."""

    async def list_user_disks(self, user_id: UserId) -> list[DiskOverview]:
        """All that are not purged, the deleted ones too, by name and age."""
        ...

    async def find_disk(self, disk_id: DiskId) -> DiskOverview | None:
        """A purged one, too."""
        ...

    async def list_disk_events(self, disk_id: DiskId, limit: int = 100) -> list[DiskEvent]:
        """What happened to it last, the oldest first."""
        ...

    async def find_snapshot_contents(
        self, disk_id: DiskId, snapshot_id: RecordedSnapshotId | None = None
    ) -> SnapshotContents | None:
        """Of this snapshot; or of the one that holds what is on the disk now, or else of the newest that has one."""
        ...

    async def load_contents_totals(self, disk_id: DiskId) -> Mapping[RecordedSnapshotId, ContentsTotals]:
        """Of those of its snapshots that have a listing."""
        ...


class DiskOperationStore(Protocol):
    async def accept(
        self, user_id: UserId, decide: Decide, *, now: datetime, by: str, key: str | None = None
    ) -> Operation | None:
        """Load everything of the user, decide and write, as one: no other request of the user and no submit that
        claims a disk comes between. The operation's message goes with it. An earlier request of the same user with
        the same key is answered again, whatever `decide` would say. Raises what `decide` raises."""
        ...

    async def load_facts(self, operation_id: OperationId) -> OperationFacts | None: ...

    async def write_changes(self, changes: OperationChanges, *, now: datetime, by: str) -> Operation:
        """Raises Stale, having written nothing."""
        ...

    async def due(self, now: datetime, limit: int = 100) -> list[OperationId]:
        """Those not over that may go on now, by arrival."""
        ...

    async def next_due(self) -> datetime | None: ...

    async def list_pending_snapshots(self, limit: int = 1000) -> list[SnapshotRecord]:
        """Snapshots that the cloud had not finished when their operation was over."""
        ...

    async def finish_snapshot(self, record: SnapshotRecord, *, now: datetime, event: str | None = None) -> bool:
        """What became of such a one, with a line of its disk's history. False: it is no longer pending."""
        ...

    async def list_deleted_before(self, moment: datetime) -> list[DiskMaintenance]:
        """Disks that may be purged."""
        ...

    async def list_with_snapshots(self) -> list[DiskMaintenance]:
        """Disks that may have something to prune."""
        ...

    async def list_without_snapshot_since(self, moment: datetime) -> list[DiskInUse]:
        """Disks that their dev server has had since before then, of which no snapshot was taken or tried since."""
        ...

    async def find_operation(self, operation_id: OperationId) -> Operation | None: ...

    async def operations(self, disk_id: DiskId, limit: int = 50) -> list[Operation]:
        """The newest first."""
        ...

    async def snapshots(self, disk_id: DiskId) -> Sequence[SnapshotRecord]:
        """All that are recorded, the newest first; the removed ones too."""
        ...


@dataclass(frozen=True, slots=True)
class DiskAttachment:
    """A reservation's disk, and what was last asked for it on the reservation's behalf."""

    disk: DiskState
    ready_operation: Operation | None = None
    """The newest that makes it ready."""
    ready_count: int = 0
    """How often that was asked for."""
    away_operation: Operation | None = None
    """The newest that puts it away."""


class AttachmentStore(Protocol):
    async def find_attachment(self, disk_id: DiskId, reservation_id: ReservationId) -> DiskAttachment | None: ...

    async def write_finished_operation(self, changes: OperationChanges, key: str, *, now: datetime, by: str) -> bool:
        """An operation that is over as soon as it is asked for, and what it makes of the disk. False, and nothing is
        written: the disk is no longer as it was read, or something is being done to it."""
        ...


class UnlinkedDisks(Protocol):
    """Disks that are on no volume that was recorded, and never were."""

    async def list_unlinked_disks(self) -> list[DiskState]: ...

    async def adopt_volume(self, disk: DiskState, volume: Volume, zone: str, *, now: datetime) -> bool:
        """It is on that volume, and has been all along. False: somebody wrote the disk meanwhile."""
        ...


class ContentsStore(Protocol):
    """Listings of what is in snapshots, kept as long as these are."""

    async def save_contents(self, snapshot_id: RecordedSnapshotId, contents: Contents, *, now: datetime) -> None:
        """Twice is once."""
        ...

    async def list_snapshots_without_contents(self, limit: int = 1000) -> list[SnapshotRecord]:
        """Complete snapshots without one, the newest first."""
        ...

    async def save_reported_contents(
        self, reservation_id: ReservationId, disk_id: DiskId, contents: Contents, *, now: datetime
    ) -> None:
        """What a dev server says is in its home, for the snapshot that is taken when it is gone. Its last word
        counts."""
        ...

    async def assign_reported_contents(self, *, now: datetime) -> None:
        """Those snapshots that were taken meanwhile get what was heard for them."""
        ...

    async def delete_removed_contents(self) -> None:
        """Those of snapshots that are no more."""
        ...


@dataclass(frozen=True, slots=True)
class DiskLocation:
    """Where a disk's volume is."""

    zone: str
    is_saved: bool = False
    """A finished snapshot holds exactly what is on it, so that it can be made anew in another zone."""


class DiskLocations(Protocol):
    async def find_locations(self, disk_ids: Sequence[DiskId]) -> Mapping[DiskId, DiskLocation]:
        """Of those that have a volume somewhere."""
        ...


# Reconciliation of disk records: versioned rows, guarded writes. Nothing here removes anything.


@dataclass(frozen=True, slots=True)
class DiskRecord:
    disk_id: DiskId
    user_id: UserId
    username: str
    disk_name: str
    created_at: datetime
    volume_id: str | None = None
    zone: str | None = None
    size_gb: int | None = None
    in_use: bool = False
    reservation_id: ReservationId | None = None
    is_held: bool = False
    """By a reservation that is not over: it may be waiting, being prepared, running or being cleared away."""
    is_deleted: bool = False
    is_backing_up: bool = False
    snapshot_count: int = 0
    last_snapshot_at: datetime | None = None
    operation_id: UUID | None = None
    operation_status: str | None = None
    user_is_active: bool = True
    mark: int = 0
    """The row's version as it was read; whoever writes it changes it."""

    @property
    def is_being_worked_on(self) -> bool:
        """A status that we do not know is one of somebody at work."""
        return self.operation_id is not None and self.operation_status not in OPERATION_OVER


OPERATION_OVER = ("completed", "done", "failed")


@dataclass(frozen=True, slots=True)
class ImportDisk:
    """A volume that no record knows. Its owner is made, inactive, where nobody is called so."""

    username: str
    disk_name: str
    fields: Mapping[str, Any]
    """Columns of the new record."""


@dataclass(frozen=True, slots=True)
class UpdateDisk:
    disk_id: DiskId
    mark: int
    disk_name: str
    username: str
    reason: str
    changes: Mapping[str, tuple[Any, Any]]
    """Column → (old, new)."""


DiskWrite = ImportDisk | UpdateDisk


@dataclass(frozen=True, slots=True)
class DiskWriteResult:
    done: Sequence[DiskWrite] = ()
    stale: Sequence[DiskWrite] = ()
    """Somebody else wrote there first; the next pass looks again."""
    failed: Sequence[tuple[DiskWrite, str]] = ()
    """What the database refused, each with why. The others were written all the same."""


class DiskRecords(Protocol):
    async def list_records(self) -> list[DiskRecord]:
        """Everybody's, the deleted ones too."""
        ...

    async def list_owned_ids(self) -> AbstractSet[str]:
        """By the cloud's ids: recorded snapshots of disks that are not purged, and volumes that others have replaced
        and that go once what was on them is safe."""
        ...

    async def write_records(self, writes: Sequence[DiskWrite], *, now: datetime, by: str) -> DiskWriteResult:
        """Each is written with its history, whole or not at all."""
        ...
