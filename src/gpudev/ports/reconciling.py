"""What keeping records true needs of the database: facts with a mark of how they were read, guarded writes, and a lock
for each pass. Nothing here removes anything.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.ports.cluster import ClusterState
from gpudev.ports.reservations import AvailabilityRow, Lease


class ReconcilePass(StrEnum):
    AVAILABILITY = "availability"
    DISKS = "disks"
    EXPIRY = "expiry"


class ReconcileLocks(Protocol):
    def hold(self, which: ReconcilePass, *, wait: bool) -> AbstractAsyncContextManager[str | None]:
        """None: it is ours until the end of the block. Otherwise (never when waiting): who is at it, in words."""
        ...


class ClusterObserver(Protocol):
    """One look, for whoever does not stay."""

    async def observe(self) -> ClusterState: ...


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


class AvailabilityStore(Protocol):
    async def type_names(self) -> list[str]:
        """Of all types, also those that are not offered."""
        ...

    async def availability(self) -> list[AvailabilityRow]: ...

    async def write_if_newer(self, row: AvailabilityRow) -> bool:
        """False: the row holds facts that were true later than these."""
        ...


@dataclass(frozen=True, slots=True)
class PlanningRecords:
    """How the processor that plans gets on."""

    at: datetime | None
    """When it last looked at the queues, with the cluster in sight. None: never, or nobody plans now."""
    since: datetime | None
    """Since when it has done so without a long break."""
    by_type: Mapping[str, tuple[datetime, frozenset[int]]] = field(default_factory=dict)
    """When a type's queue was last looked at, and whom (by seq) that was."""


class PlanningRecordStore(Protocol):
    async def record_examined(self, lease: Lease, by_type: Mapping[str, Sequence[int]], now: datetime) -> None:
        """Whom the holder of the lease has just looked at, with the cluster in sight. Nothing if it is another's."""
        ...

    async def load_planning_records(self) -> PlanningRecords: ...

    async def load_orphans(self) -> Mapping[ReservationId, datetime]:
        """Dev servers without a reservation, as runs that do not stay first saw them."""
        ...

    async def save_orphans(self, first_observed: Mapping[ReservationId, datetime]) -> None:
        """All there are now; what was known of others is forgotten."""
        ...
