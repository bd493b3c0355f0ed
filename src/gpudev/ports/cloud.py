"""The cloud behind the cluster: node groups and their refresh, volumes and snapshots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

OWNER_TAG = "gpu-dev-user"
"""The owner's user name. On GCP a label of the same name."""
DISK_NAME_TAGS = ("disk-name", "disk_name")
DISK_ID_TAG = "gpu-dev-disk-id"
"""Our id of the disk. Volumes created by other tools may lack it."""
RECORDED_TAG = "gpu-dev-snapshot-id"
"""On every snapshot of ours: the id of its record. A scanner's copy may carry it too, so only snapshots recorded with
the cloud's own id count."""
ENVIRONMENT_TAG = "gpu-dev-environment"
"""The environment, if several share one account: the prefix of its node groups. None: shared by all."""
TOKEN_TAG = "gpu-dev-token"
"""On everything we create: the idempotency token, by which it is found if the answer was lost."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that scale together (an Auto Scaling Group, a managed instance group)."""

    name: str
    desired: int
    in_service: int


@dataclass(frozen=True, slots=True)
class Volume:
    volume_id: str
    size_gb: int
    created_at: datetime
    zone: str | None
    attached_to: tuple[str, ...] = ()
    """Machines, by the cloud's names. Empty: detached."""
    tags: Mapping[str, str] = field(default_factory=dict)
    busy_reason: str | None = None
    """Why it cannot be used now, for people: it has failed, or a folder is still being copied. None: usable."""

    @property
    def owner(self) -> str | None:
        return self.tags.get(OWNER_TAG)

    @property
    def disk_name(self) -> str | None:
        return next((self.tags[tag] for tag in DISK_NAME_TAGS if tag in self.tags), None)


class SnapshotState(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Snapshot:
    snapshot_id: str
    volume_id: str
    state: SnapshotState
    created_at: datetime
    size_gb: int
    tags: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    """Why it failed, if known."""
    lacks: str | None = None
    """What is missing from it, for people. Clouds copy whole volumes; of a folder, only readable files are copied."""


class CloudView(Protocol):
    """Read access. All calls raise `Unavailable` if the cloud does not answer or answers incompletely (after the
    adapter's own retries), and `ClusterError` if it rejects the call (no permission, with the action's name)."""

    @property
    def name(self) -> str:
        """aws, gcp or local."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        """All with this prefix, by name."""
        ...

    async def volumes(self) -> list[Volume]:
        """All with the owner tag, oldest first."""
        ...

    async def snapshots(self) -> list[Snapshot]:
        """All of our account with the owner tag or of a volume in `volumes`, oldest first."""
        ...


class CloudDisks(Protocol):
    """Changes of volumes and snapshots. All calls are idempotent: creating with the same token returns the same object,
    also if the first answer was lost; removing a missing object succeeds."""

    async def find_volume(self, volume_id: str) -> Volume | None:
        """None: it definitely does not exist."""
        ...

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        """`token` (a UUID) identifies this creation; an existing volume with its tag is returned."""
        ...

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume: ...

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None: ...

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None: ...

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        """Begins a snapshot; `find_snapshot` shows when it is complete."""
        ...

    async def remove_volume(self, volume_id: str) -> None: ...

    async def remove_snapshot(self, snapshot_id: str) -> None: ...


class Cloud(CloudView, CloudDisks, Protocol):
    """Read and write access."""


# Node groups and machine refresh.
#
# This port knows nothing about reservations: the caller ensures that the machines are empty.


class RefreshState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Or cancelled: not all machines are new."""


@dataclass(frozen=True, slots=True)
class MachineRefresh:
    """One replacement of all machines of a group by new ones from its current template."""

    refresh_id: str
    state: RefreshState
    percent: int
    detail: str
    """The cloud's own status text."""


class NodeGroups(Protocol):
    """All calls raise `Unavailable` if the cloud does not answer, and `ClusterError` if it rejects the call."""

    async def node_groups(self, prefix: str) -> list[NodeGroup]: ...

    async def machines(self, group: str) -> Sequence[str]:
        """By the cloud's own names. Raises NotFound for an unknown group."""
        ...

    async def last_refresh(self, group: str) -> MachineRefresh | None:
        """The latest one. None: none known (clouds forget them after some weeks)."""
        ...

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> MachineRefresh:
        """Begins a refresh, or returns the running one. `keep_percent` of the machines stay in service; a new machine
        counts after its warm-up."""
        ...
