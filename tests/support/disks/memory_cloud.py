"""A cloud in memory whose volumes hold something, for promises about what they hold. It can die around any call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpudev.domain.errors import ClusterError, GpuDevError
from gpudev.ports.cloud import TOKEN_TAG, Snapshot, SnapshotState, Volume
from support.clock import ManualClock


class Crash(BaseException):
    """The process ends here. Nobody catches it."""


@dataclass
class Trouble:
    """What happens around the calls: a death before or after the n-th one, or errors."""

    crash_at: int | None = None
    after: bool = False
    calls: int = 0
    errors: dict[str, list[GpuDevError]] = field(default_factory=dict)
    """By the call's name: what it answers instead, one after the other."""
    lost_answers: dict[str, GpuDevError] = field(default_factory=dict)
    """By the call's name: what its caller hears though it was carried out."""
    names: list[str] = field(default_factory=list)
    listener: Callable[[], None] | None = None
    """Hears of every call before it is carried out."""

    def before(self, name: str) -> bool:
        """Whether the process dies after this one."""
        if self.listener is not None:
            self.listener()
        self.calls += 1
        self.names.append(name)
        dies = self.crash_at is not None and self.calls == self.crash_at
        if dies and not self.after:
            self.crash_at = None
            raise Crash(f"before {name}")
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        return dies

    def done(self, name: str, dies: bool) -> None:
        if dies:
            self.crash_at = None
            raise Crash(f"after {name}")
        if name in self.lost_answers:
            raise self.lost_answers.pop(name)


@dataclass(frozen=True)
class Removal:
    at: datetime
    thing_id: str
    content: str
    volume_id: str
    """Of a snapshot: the volume it was of."""


class MemoryCloud:
    def __init__(self, clock: ManualClock, trouble: Trouble | None = None) -> None:
        self.clock = clock
        self.trouble = trouble or Trouble()
        self.volumes_there: dict[str, Volume] = {}
        self.snapshots_there: dict[str, Snapshot] = {}
        self.contents: dict[str, str] = {}
        """Of volumes and snapshots."""
        self.removed_volumes: list[Removal] = []
        self.removed_snapshots: list[Removal] = []
        self.takes_time = True
        """Snapshots are complete only when `complete_snapshots` is called."""
        self.grows_slowly = False
        self.closed_files: str | None = None
        """What snapshots cannot take along from now on, in words; it turns out when they are complete."""
        self.made_into_images: set[str] = set()
        """Snapshots that the cloud does not let go, because somebody made an image of them."""
        self._lacking: dict[str, str] = {}
        self._by_token: dict[str, str] = {}
        self._number = 0

    # --- what the world does -----------------------------------------------------------------------------------

    def attach(self, volume_id: str, machine: str) -> None:
        volume = self.volumes_there[volume_id]
        assert not volume.attached_to, f"{volume_id} has two writers: {volume.attached_to} and {machine}"
        self.volumes_there[volume_id] = replace(volume, attached_to=(machine,))

    def detach(self, volume_id: str) -> None:
        self.volumes_there[volume_id] = replace(self.volumes_there[volume_id], attached_to=())

    def write(self, volume_id: str, content: str) -> None:
        assert self.volumes_there[volume_id].attached_to
        self.contents[volume_id] = content

    def complete_snapshots(self, state: SnapshotState = SnapshotState.COMPLETED) -> None:
        for snapshot_id, snapshot in self.snapshots_there.items():
            if snapshot.state is SnapshotState.PENDING:
                self.snapshots_there[snapshot_id] = replace(snapshot, state=state, lacks=self._lacking.get(snapshot_id))

    def copy_by_a_scanner(self, snapshot_id: str) -> str:
        """Somebody's tool copies a snapshot with all its tags, and what is in it is old."""
        copied = self._new("snap-copy")
        self.snapshots_there[copied] = replace(
            self.snapshots_there[snapshot_id],
            snapshot_id=copied,
            state=SnapshotState.COMPLETED,
            created_at=self.clock.now(),
        )
        self.contents[copied] = "a scanner's copy"
        return copied

    def give_volume(self, tags: Mapping[str, str], content: str, zone: str = "zone-a", size_gb: int = 10) -> str:
        """Made by somebody else."""
        volume_id = self._new("vol-foreign")
        self.volumes_there[volume_id] = Volume(volume_id, size_gb, self.clock.now(), zone, (), dict(tags))
        self.contents[volume_id] = content
        return volume_id

    def destroy_volume(self, volume_id: str) -> None:
        del self.volumes_there[volume_id]

    # --- what can be asked --------------------------------------------------------------------------------------

    async def find_volume(self, volume_id: str) -> Volume | None:
        dies = self.trouble.before("find_volume")
        found = self.volumes_there.get(volume_id)
        self.trouble.done("find_volume", dies)
        return found

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        dies = self.trouble.before("find_snapshot")
        found = self.snapshots_there.get(snapshot_id)
        self.trouble.done("find_snapshot", dies)
        return found

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        dies = self.trouble.before("ensure_volume")
        volume_id = self._by_token.get(token)
        if volume_id is None:
            volume_id = self._make_volume(token, size_gb, zone, tags, from_snapshot)
        elif volume_id not in self.volumes_there:
            raise ClusterError("the volume of this creation was removed")
        made = self.volumes_there[volume_id]
        self.trouble.done("ensure_volume", dies)
        return made

    def _make_volume(
        self, token: str, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None
    ) -> str:
        content = ""
        if from_snapshot is not None:
            base = self.snapshots_there.get(from_snapshot)
            if base is None or base.state is not SnapshotState.COMPLETED or base.size_gb > size_gb:
                raise ClusterError(f"no volume can be made from {from_snapshot}")
            content = self.contents[from_snapshot]
        volume_id = self._by_token[token] = self._new("vol")
        self.volumes_there[volume_id] = Volume(
            volume_id, size_gb, self.clock.now(), zone, (), {**tags, TOKEN_TAG: token}
        )
        self.contents[volume_id] = content
        return volume_id

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume:
        dies = self.trouble.before("grow_volume")
        volume = self._get(volume_id)
        if not self.grows_slowly and size_gb > volume.size_gb:
            self.volumes_there[volume_id] = replace(volume, size_gb=size_gb)
        self.trouble.done("grow_volume", dies)
        return self.volumes_there[volume_id]

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        dies = self.trouble.before("tag_volume")
        volume = self._get(volume_id)
        self.volumes_there[volume_id] = replace(volume, tags={**volume.tags, **tags})
        self.trouble.done("tag_volume", dies)

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        dies = self.trouble.before("ensure_snapshot")
        snapshot_id = self._by_token.get(token)
        if snapshot_id is None:
            volume = self._get(volume_id)
            snapshot_id = self._by_token[token] = self._new("snap")
            state = SnapshotState.PENDING if self.takes_time else SnapshotState.COMPLETED
            self.snapshots_there[snapshot_id] = Snapshot(
                snapshot_id, volume_id, state, self.clock.now(), volume.size_gb, {**tags, TOKEN_TAG: token}
            )
            self.contents[snapshot_id] = self.contents[volume_id]
            if self.closed_files is not None:
                self._lacking[snapshot_id] = self.closed_files
                self.contents[snapshot_id] = f"part of {self.contents[volume_id]}"
        taken = self.snapshots_there[snapshot_id]
        self.trouble.done("ensure_snapshot", dies)
        return taken

    async def remove_volume(self, volume_id: str) -> None:
        dies = self.trouble.before("remove_volume")
        volume = self.volumes_there.get(volume_id)
        if volume is not None:
            if volume.attached_to:
                raise ClusterError(f"{volume_id} is attached to {volume.attached_to[0]}")
            del self.volumes_there[volume_id]
            self.removed_volumes.append(Removal(self.clock.now(), volume_id, self.contents[volume_id], volume_id))
        self.trouble.done("remove_volume", dies)

    async def remove_snapshot(self, snapshot_id: str) -> None:
        dies = self.trouble.before("remove_snapshot")
        if snapshot_id in self.made_into_images:
            raise ClusterError(f"{snapshot_id} is in use by an image")
        snapshot = self.snapshots_there.pop(snapshot_id, None)
        if snapshot is not None:
            self.removed_snapshots.append(
                Removal(self.clock.now(), snapshot_id, self.contents[snapshot_id], snapshot.volume_id)
            )
        self.trouble.done("remove_snapshot", dies)

    def _get(self, volume_id: str) -> Volume:
        if volume_id not in self.volumes_there:
            raise ClusterError(f"there is no volume {volume_id}")
        return self.volumes_there[volume_id]

    def _new(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"
