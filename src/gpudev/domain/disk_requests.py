"""What can be asked to be done to disks, by people and by the system itself."""

from dataclasses import dataclass

from gpudev.domain.disks.operations import RecordedSnapshotId
from gpudev.domain.ids import DiskId, ReservationId


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
