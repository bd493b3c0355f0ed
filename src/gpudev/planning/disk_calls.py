"""The vocabulary of disk operations: what is looked at, what is asked of the cloud, and how a step may end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from gpudev.domain.disks.operations import DiskState, SnapshotRecord, VolumeRecord
from gpudev.ports.cloud import Snapshot, Volume


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
