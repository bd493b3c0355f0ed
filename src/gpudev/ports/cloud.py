"""The cloud behind the cluster: node groups and their refresh, volumes and snapshots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

OWNER_TAG = "gpu-dev-user"
"""Whose volume it is, by name. GCP has labels instead of tags, under the same name."""
DISK_NAME_TAGS = ("disk-name", "disk_name")
DISK_ID_TAG = "gpu-dev-disk-id"
"""Our own id of the disk. Volumes made elsewhere may lack it."""
RECORDED_TAG = "gpu-dev-snapshot-id"
"""On every snapshot we make: the id under which it is recorded. A copy that a scanner made may carry it too, so only
what is recorded with the cloud's own id counts."""
ENVIRONMENT_TAG = "gpu-dev-environment"
"""Whose it is where one account has several environments: the prefix of their groups' names. None: everybody's."""
TOKEN_TAG = "gpu-dev-token"
"""On everything we make: the token of its creation, by which it is found again when the answer was lost."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are started and stopped together (an Auto Scaling Group, a managed instance group)."""

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
    """Machines, by the cloud's names. Empty: nobody has it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    busy_reason: str | None = None
    """Why nobody can write to it now, in words: a cloud says that it has failed; a folder is still being copied."""

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
    """Why it failed, where that is known."""
    lacks: str | None = None
    """What was on the volume and is not in it, in words. Clouds take all of a volume; of a folder, what can be read."""


class CloudView(Protocol):
    """What can be seen. All calls raise `Unavailable` when the cloud cannot be asked or answers incompletely (after
    the adapter's own retries), and `ClusterError` when it refuses (no permission, with the action's name)."""

    @property
    def name(self) -> str:
        """aws, gcp or local."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        """All whose name begins so, by name."""
        ...

    async def volumes(self) -> list[Volume]:
        """All that carry the owner's tag, the oldest first."""
        ...

    async def snapshots(self) -> list[Snapshot]:
        """All of our own account that carry the owner's tag or belong to a volume of `volumes`, the oldest first."""
        ...


class CloudDisks(Protocol):
    """What can be done to volumes and snapshots. Every call may be repeated: creating with the same token gives the
    same thing again, also when the answer to the first call was lost; removing what is gone succeeds."""

    async def find_volume(self, volume_id: str) -> Volume | None:
        """None: the cloud says definitely that there is none."""
        ...

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        """`token` (a uuid's text) names this one creation; it is looked for by its tag before anything is made."""
        ...

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume: ...

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None: ...

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None: ...

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        """Begins one; `find_snapshot` tells when it is complete."""
        ...

    async def remove_volume(self, volume_id: str) -> None: ...

    async def remove_snapshot(self, snapshot_id: str) -> None: ...


class Cloud(CloudView, CloudDisks, Protocol):
    """Both."""


# Node groups and machine refresh.
#
# This port knows no reservations: the caller has made sure that the machines are empty.


class RefreshState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Or it was called off: not all machines are new."""


@dataclass(frozen=True, slots=True)
class MachineRefresh:
    """One replacement of all machines of a group, old ones by new ones of its present template."""

    refresh_id: str
    state: RefreshState
    percent: int
    detail: str
    """The cloud's own words for how it stands."""


class NodeGroups(Protocol):
    """All calls raise `Unavailable` when the cloud cannot be asked, and `ClusterError` when it refuses."""

    async def node_groups(self, prefix: str) -> list[NodeGroup]: ...

    async def machines(self, group: str) -> Sequence[str]:
        """By the cloud's own names. NotFound: there is no such group."""
        ...

    async def last_refresh(self, group: str) -> MachineRefresh | None:
        """The latest there was. None: none is known. (The cloud forgets them after some weeks.)"""
        ...

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> MachineRefresh:
        """Begins one, unless one is under way: then that one. So many of its machines stay in service throughout; a
        new one counts after its warm-up."""
        ...
