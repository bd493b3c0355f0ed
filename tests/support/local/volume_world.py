"""Local volumes for tests: a state folder, the cloud on it, and a hand that reaches past it."""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid4

from contracts.cloud_worlds import LONG_AGO, CloudWorld, ours
from gpudev.adapters.local.cloud import LocalCloud
from gpudev.adapters.local.servers.state_folder import ServerRecord, StateFolder
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.adapters.local.volumes.volume_layout import (
    LocalSnapshotRecord,
    LocalVolumeRecord,
    VolumeLayout,
    VolumeOrSnapshot,
)
from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.ports.clock import Clock
from gpudev.ports.cloud import Snapshot, SnapshotState, Volume
from gpudev.ports.cluster import ServerSpec
from support.polling import eventually_async

PATIENCE_S = 60.0


class VolumeWorld(CloudWorld):
    cloud: LocalCloud
    zone = "here"

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        self.state_dir = state_dir
        self.clock = clock
        self.folders = VolumeLayout(state_dir / "disks")
        self.cloud = LocalCloud(state_dir, clock)

    async def restart(self) -> None:
        await self.cloud.close()
        self.cloud = LocalCloud(self.state_dir, self.clock)
        await self.cloud.start()

    def home(self, volume: Volume) -> Path:
        return self.folders.volume_path(volume.volume_id)

    def tree(self, snapshot: Snapshot) -> Path:
        return self.folders.snapshot_path(snapshot.snapshot_id) / "tree"

    async def snapshot(self, volume: Volume, token: str | None = None) -> Snapshot:
        """A complete one."""
        begun = await self.cloud.ensure_snapshot(token or str(uuid4()), volume.volume_id, ours())
        await self.complete(begun.snapshot_id)
        found = await self.cloud.find_snapshot(begun.snapshot_id)
        assert found is not None
        return found

    async def restored(self, snapshot: Snapshot) -> Volume:
        return await self.cloud.ensure_volume(
            str(uuid4()), size_gb=10, zone=self.zone, tags=ours(), from_snapshot=snapshot.snapshot_id
        )

    async def record(self, snapshot: Snapshot) -> LocalSnapshotRecord:
        found = await self.cloud.find_snapshot_record(snapshot.snapshot_id)
        assert found is not None
        return found

    async def cleaned_up(self) -> None:
        """What goes on in the background has ended, and nothing is left that should not be."""
        folders = (self.folders.trash, self.folders.drafts)
        await eventually_async(lambda: not any(list(folder.iterdir()) for folder in folders), within=PATIENCE_S)

    # What the contracts ask for

    async def give_volume(self, *, tags: Mapping[str, str], created_at: datetime = LONG_AGO, size_gb: int = 10) -> str:
        volume_id = str(uuid4())
        record = LocalVolumeRecord(size_gb, created_at, self.zone, volume_id, tags)
        with self.folders.lock(VolumeOrSnapshot.VOLUME, volume_id):  # else it may be cleaned away as the half of one
            self.folders.write_volume_record(volume_id, record)
            self.folders.volume_path(volume_id).mkdir()
        return volume_id

    async def give_snapshot(
        self,
        volume_id: str,
        *,
        tags: Mapping[str, str],
        created_at: datetime = LONG_AGO,
        state: SnapshotState = SnapshotState.COMPLETED,
    ) -> str:
        snapshot_id = str(uuid4())
        volume = self.folders.find_volume_record(volume_id)
        size = volume.size_gb if volume else 0
        folder = self.folders.snapshot_path(snapshot_id)
        folder.mkdir()
        (folder / "tree").mkdir()
        self.folders.write_snapshot_record(
            folder, LocalSnapshotRecord(volume_id, size, created_at, snapshot_id, tags, state)
        )
        return snapshot_id

    async def attach(self, volume_id: str) -> str:
        """A dev server on node `b` has it as its home."""
        reservation_id = ReservationId(UUID(volume_id))
        spec = ServerSpec(
            reservation_id=reservation_id,
            pod_name="gpu-dev-test",
            user_id=UserId(1),
            username="ada",
            gpu_type="h100",
            gpu_count=1,
            shares=(NodeShare(0, "b", 1, (0,)),),
            ssh_public_keys=(),
            disk_id=DiskId(UUID(volume_id)),
            disk_name="default",
        )
        folder = StateFolder(self.state_dir).server(reservation_id)
        folder.path.mkdir(parents=True)
        folder.write_record(ServerRecord(spec, (2222,), None))
        return "b"

    async def detach(self, volume_id: str) -> None:
        remove_folder(StateFolder(self.state_dir).server(ReservationId(UUID(volume_id))).path)

    async def destroy_volume(self, volume_id: str) -> None:
        remove_folder(self.folders.volume_path(volume_id))

    async def complete(self, snapshot_id: str) -> None:
        async def is_over() -> bool:
            found = await self.cloud.find_snapshot(snapshot_id)
            return found is None or found.state is not SnapshotState.PENDING

        await eventually_async(is_over, within=PATIENCE_S, every=0.005)


def seen(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a tree that a copy must keep, by path."""
    found: dict[str, tuple[object, ...]] = {}
    names: dict[tuple[int, int], str] = {}
    for path in sorted([top, *top.rglob("*")]):
        stat = path.lstat()
        first = names.setdefault((stat.st_dev, stat.st_ino), str(path.relative_to(top)))
        if path.is_symlink():
            content: object = path.readlink()
        else:
            content = path.read_bytes() if path.is_file() else None
        attributes = {}
        if not path.is_symlink():
            attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        found[str(path.relative_to(top))] = (
            oct(stat.st_mode),
            stat.st_uid,
            stat.st_gid,
            stat.st_mtime_ns,
            content,
            attributes,
            first if path.is_file() and not path.is_symlink() else None,
        )
    return found
