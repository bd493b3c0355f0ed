"""Google Cloud behind the Cloud port."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpudev.adapters.gcp.client import Caller, Pace
from gpudev.adapters.gcp.listing import DISKS, GROUPS, SNAPSHOTS, listed
from gpudev.adapters.gcp.resources import (
    is_in_region,
    node_group_of,
    snapshot_of,
    snapshot_path,
    volume_of,
    zonal_disk_path,
)
from gpudev.adapters.gcp.volumes import Disks
from gpudev.ports.cloud import OWNER_TAG, NodeGroup, Snapshot, Volume
from gpudev.settings import GcpSettings

_T = TypeVar("_T")


class GcpCloud:
    def __init__(self, settings: GcpSettings, pace: Pace | None = None) -> None:
        self._region = settings.region
        self._caller = Caller(settings, pace or Pace())
        self._disks = Disks(self._caller)

    @property
    def name(self) -> str:
        return "gcp"

    async def start(self) -> None:
        await self._caller.start()

    async def close(self) -> None:
        await self._caller.close()

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        """Zones may hold groups of the same name; each is told."""

        def ours(group: Any) -> tuple[str, NodeGroup] | None:
            return (group.self_link, node_group_of(group)) if group.name.startswith(prefix) else None

        found = await listed(self._caller, GROUPS, ours)
        return [group for _, group in sorted(found, key=lambda pair: (pair[1].name, pair[0]))]

    async def volumes(self) -> list[Volume]:
        volumes = await self._listed_disks(volume_of)
        return sorted(volumes, key=lambda volume: (volume.created_at, volume.volume_id))

    async def snapshots(self) -> list[Snapshot]:
        """A disk's snapshots are known by its number: a later disk of the same name is another one."""
        numbers = set(await self._listed_disks(lambda disk: str(disk.id)))

        def ours(snapshot: Any) -> Snapshot | None:
            is_ours = OWNER_TAG in snapshot.labels or snapshot.source_disk_id in numbers
            return snapshot_of(snapshot) if is_ours and is_in_region(snapshot.source_disk, self._region) else None

        snapshots = await listed(self._caller, SNAPSHOTS, ours)
        return sorted(snapshots, key=lambda snapshot: (snapshot.created_at, snapshot.snapshot_id))

    async def _listed_disks(self, read: Callable[[Any], _T]) -> list[_T]:
        def ours(disk: Any) -> _T | None:
            return read(disk) if OWNER_TAG in disk.labels else None

        return await listed(self._caller, DISKS, ours, asking=f"labels.{OWNER_TAG}:*")

    async def find_volume(self, volume_id: str) -> Volume | None:
        disk = await self._disks.find(zonal_disk_path(volume_id))
        return None if disk is None else volume_of(disk)

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        disk = await self._disks.ensure(token, size_gb=size_gb, zone=zone, tags=tags, from_snapshot=from_snapshot)
        return volume_of(disk)

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume:
        return volume_of(await self._disks.grow(zonal_disk_path(volume_id), size_gb))

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        await self._disks.tag(zonal_disk_path(volume_id), tags)

    async def is_detached(self, volume_id: str) -> bool:
        disk = await self._disks.find(zonal_disk_path(volume_id))
        return disk is None or not disk.users

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        snapshot = await self._disks.find_snapshot(snapshot_path(snapshot_id))
        return None if snapshot is None else snapshot_of(snapshot)

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        return snapshot_of(await self._disks.ensure_snapshot(token, zonal_disk_path(volume_id), tags))

    async def remove_volume(self, volume_id: str) -> None:
        await self._disks.remove(zonal_disk_path(volume_id))

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self._disks.remove_snapshot(snapshot_path(snapshot_id))
