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
from gpudev.ports.cloud import Snapshot, Volume

Decide = Callable[[UserDisks], OperationChanges | None]
"""Pure: called while all of a user's disks are locked. None: nothing to do."""


@dataclass(frozen=True, slots=True)
class DiskMaintenance:
    """A disk that may be due for pruning or purging."""

    user_id: UserId
    disk_id: DiskId


@dataclass(frozen=True, slots=True)
class DiskInUse:
    """A disk that a dev server uses."""

    user_id: UserId
    disk_id: DiskId
    reservation_id: ReservationId


@dataclass(frozen=True, slots=True)
class DiskOverview:
    """A disk as its owner sees it."""

    state: DiskState
    last_used: datetime | None = None
    snapshot_count: int = 0
    """The number of usable snapshots."""
    last_snapshot_at: datetime | None = None
    is_backing_up: bool = False
    """A snapshot is not complete yet."""
    latest: Operation | None = None
    """The running operation, else the last one."""
    is_attached: bool = False
    """The cloud shows its volume attached to a machine, or a reservation holds it."""
    volume_missing_since: datetime | None = None
    """When the cloud first lacked its volume. None: it is there, or was never created."""


@dataclass(frozen=True, slots=True)
class DiskEvent:
    """A line of a disk's history."""

    at: datetime
    kind: str
    message: str
    by: str


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    """The contents of a snapshot."""

    snapshot_id: RecordedSnapshotId
    as_of: datetime
    contents: Contents
    is_latest: bool = True
    """False: an older snapshot, because the latest state is in one that has no listing."""


@dataclass(frozen=True, slots=True)
class ContentsTotals:
    files: int
    size_bytes: int


class DiskViews(Protocol):
    """Read access to disks."""

    async def list_user_disks(self, user_id: UserId) -> list[DiskOverview]:
        """All that are not purged, including deleted ones, by name and age."""
        ...

    async def find_disk(self, disk_id: DiskId) -> DiskOverview | None:
        """Including purged ones."""
        ...

    async def list_disk_events(self, disk_id: DiskId, limit: int = 100) -> list[DiskEvent]:
        """The latest events, oldest first."""
        ...

    async def find_snapshot_contents(
        self, disk_id: DiskId, snapshot_id: RecordedSnapshotId | None = None
    ) -> SnapshotContents | None:
        """Of this snapshot. None: of the snapshot that equals the disk, else of the newest with a listing."""
        ...

    async def load_contents_totals(self, disk_id: DiskId) -> Mapping[RecordedSnapshotId, ContentsTotals]:
        """By snapshot, where there is a listing."""
        ...


class DiskOperationStore(Protocol):
    async def accept(
        self, user_id: UserId, decide: Decide, *, now: datetime, by: str, key: str | None = None
    ) -> Operation | None:
        """Loads the user's disks, decides and writes in one transaction: no other request of the user and no submit
        that claims a disk comes between. Sends the operation's message. A request with a known key returns the earlier
        operation, without `decide`. Raises what `decide` raises."""
        ...

    async def load_facts(self, operation_id: OperationId) -> OperationFacts | None: ...

    async def write_changes(self, changes: OperationChanges, *, now: datetime, by: str) -> Operation:
        """Raises Stale; then nothing is written."""
        ...

    async def due(self, now: datetime, limit: int = 100) -> list[OperationId]:
        """Unfinished operations that may continue now, by arrival."""
        ...

    async def next_due(self) -> datetime | None: ...

    async def list_pending_snapshots(self, limit: int = 1000) -> list[SnapshotRecord]:
        """Snapshots that were incomplete when their operation ended."""
        ...

    async def finish_snapshot(self, record: SnapshotRecord, *, now: datetime, event: str | None = None) -> bool:
        """Records the result of such a snapshot, with a line of history. False: no longer pending."""
        ...

    async def list_deleted_before(self, moment: datetime) -> list[DiskMaintenance]:
        """Disks that may be purged."""
        ...

    async def list_with_snapshots(self) -> list[DiskMaintenance]:
        """Disks that may have something to prune."""
        ...

    async def list_without_snapshot_since(self, moment: datetime) -> list[DiskInUse]:
        """Disks in use since before then, without a snapshot (or an attempt) since."""
        ...

    async def find_operation(self, operation_id: OperationId) -> Operation | None: ...

    async def operations(self, disk_id: DiskId, limit: int = 50) -> list[Operation]:
        """Newest first."""
        ...

    async def snapshots(self, disk_id: DiskId) -> Sequence[SnapshotRecord]:
        """All recorded ones, including removed ones, newest first."""
        ...


@dataclass(frozen=True, slots=True)
class DiskAttachment:
    """A reservation's disk, and the last operations requested for the reservation."""

    disk: DiskState
    ready_operation: Operation | None = None
    """The newest make_ready."""
    ready_count: int = 0
    """The number of make_ready requests."""
    away_operation: Operation | None = None
    """The newest put_away."""


class AttachmentStore(Protocol):
    async def find_attachment(self, disk_id: DiskId, reservation_id: ReservationId) -> DiskAttachment | None: ...

    async def write_finished_operation(self, changes: OperationChanges, key: str, *, now: datetime, by: str) -> bool:
        """Writes a completed operation and the disk's new state. False: nothing was written, because the disk has
        changed since it was read, or another operation runs."""
        ...


class UnlinkedDisks(Protocol):
    """Disks that never had a recorded volume."""

    async def list_unlinked_disks(self) -> list[DiskState]: ...

    async def adopt_volume(self, disk: DiskState, volume: Volume, zone: str, *, now: datetime) -> bool:
        """Records the volume as the disk's. False: the disk was changed meanwhile."""
        ...


class ContentsStore(Protocol):
    """Listings of snapshots, kept as long as the snapshots."""

    async def save_contents(self, snapshot_id: RecordedSnapshotId, contents: Contents, *, now: datetime) -> None:
        """Idempotent."""
        ...

    async def list_snapshots_without_contents(self, limit: int = 1000) -> list[SnapshotRecord]:
        """Complete snapshots without a listing, newest first."""
        ...

    async def save_reported_contents(
        self, reservation_id: ReservationId, disk_id: DiskId, contents: Contents, *, now: datetime
    ) -> None:
        """A dev server's listing of its home, for the snapshot after the teardown. The last report counts."""
        ...

    async def assign_reported_contents(self, *, now: datetime) -> None:
        """Assigns reported listings to the snapshots taken since."""
        ...

    async def delete_removed_contents(self) -> None:
        """Deletes listings of removed snapshots."""
        ...


@dataclass(frozen=True, slots=True)
class DiskLocation:
    """The zone of a disk's volume."""

    zone: str
    is_saved: bool = False
    """A complete snapshot equals the volume, so it can be created in another zone."""


class DiskLocations(Protocol):
    async def find_locations(self, disk_ids: Sequence[DiskId]) -> Mapping[DiskId, DiskLocation]:
        """Of disks that have a volume."""
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
    """Claimed by an unreleased reservation."""
    is_deleted: bool = False
    is_backing_up: bool = False
    snapshot_count: int = 0
    last_snapshot_at: datetime | None = None
    volume_missing_since: datetime | None = None
    operation_id: UUID | None = None
    operation_status: str | None = None
    user_is_active: bool = True
    mark: int = 0
    """The row's version as read; every write increases it."""

    @property
    def is_being_worked_on(self) -> bool:
        """An unknown status counts as work in progress."""
        return self.operation_id is not None and self.operation_status not in OPERATION_OVER


OPERATION_OVER = ("completed", "done", "failed")


@dataclass(frozen=True, slots=True)
class ImportDisk:
    """A volume without a record. A missing owner is created as an inactive user."""

    username: str
    disk_name: str
    fields: Mapping[str, Any]
    """Columns of the new record."""
    tagged_name: str | None = None
    """The name in the volume's tag, if it cannot be a disk's name."""
    snapshots: tuple[Snapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateDisk:
    disk_id: DiskId
    mark: int
    disk_name: str
    username: str
    reason: str
    changes: Mapping[str, tuple[Any, Any]]
    """Column → (old, new)."""


@dataclass(frozen=True, slots=True)
class ImportSnapshots:
    """Unrecorded snapshots of a recorded disk's volume."""

    disk_id: DiskId
    disk_name: str
    username: str
    snapshots: tuple[Snapshot, ...]


DiskWrite = ImportDisk | UpdateDisk | ImportSnapshots


@dataclass(frozen=True, slots=True)
class DiskWriteResult:
    done: Sequence[DiskWrite] = ()
    stale: Sequence[DiskWrite] = ()
    """Changed by another writer meanwhile; the next pass tries again."""
    failed: Sequence[tuple[DiskWrite, str]] = ()
    """Writes that the database rejected, with the reasons. The others were written."""


class DiskRecords(Protocol):
    async def list_records(self) -> list[DiskRecord]:
        """Of all users, including deleted ones."""
        ...

    async def list_owned_ids(self) -> AbstractSet[str]:
        """The cloud's ids of recorded snapshots of unpurged disks, and of retired volumes that are removed once their
        state is saved."""
        ...

    async def list_snapshot_ids(self) -> AbstractSet[str]:
        """Our own ids and the cloud's of all snapshots that were ever recorded."""
        ...

    async def write_records(self, writes: Sequence[DiskWrite], *, now: datetime, by: str) -> DiskWriteResult:
        """Each write is atomic and includes its history."""
        ...
