"""Google Cloud behind the Cloud port."""

import asyncio
from collections.abc import Mapping
from typing import Any

from gpudev.adapters.gcp import listing
from gpudev.adapters.gcp.calling import Caller, Pace
from gpudev.adapters.gcp.disks import Disks
from gpudev.adapters.gcp.resources import (
    is_in_region,
    node_group_of,
    snapshot_of,
    snapshot_path,
    volume_of,
    zonal_disk_path,
)
from gpudev.ports.cloud import OWNER_TAG, NodeGroup, Snapshot, Volume
from gpudev.settings import GcpSettings


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
        answers = await listing.pages(self._caller, listing.GROUPS)
        found = listing.whole(answers, listing.GROUPS, self._region, lambda scoped: scoped.instance_group_managers)
        ours = sorted((group for group in found if group.name.startswith(prefix)), key=_name_and_place)
        return [node_group_of(group) for group in ours]

    async def volumes(self) -> list[Volume]:
        volumes = [volume_of(disk) for disk in await self._owned_disks()]
        return sorted(volumes, key=lambda volume: (volume.created_at, volume.volume_id))

    async def snapshots(self) -> list[Snapshot]:
        """A disk's snapshots are known by its number: a later disk of the same name is another one."""
        answers, disks = await asyncio.gather(listing.pages(self._caller, listing.SNAPSHOTS), self._owned_disks())
        numbers = {str(disk.id) for disk in disks}
        snapshots = [
            snapshot_of(snapshot)
            for snapshot in listing.whole_list(answers, listing.SNAPSHOTS)
            if (OWNER_TAG in snapshot.labels or snapshot.source_disk_id in numbers)
            and is_in_region(snapshot.source_disk, self._region)
        ]
        return sorted(snapshots, key=lambda snapshot: (snapshot.created_at, snapshot.snapshot_id))

    async def _owned_disks(self) -> list[Any]:
        answers = await listing.pages(self._caller, listing.DISKS, asking=f"labels.{OWNER_TAG}:*")
        found = listing.whole(answers, listing.DISKS, self._region, lambda scoped: scoped.disks)
        return [disk for disk in found if OWNER_TAG in disk.labels]

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


def _name_and_place(group: Any) -> tuple[str, str]:
    return group.name, group.self_link
