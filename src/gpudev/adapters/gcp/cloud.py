"""Google Cloud implementation of the Cloud port."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpudev.adapters.environment_tag import EnvironmentTag
from gpudev.adapters.gcp.client import (
    DISK_LISTING,
    GROUP_LISTING,
    SNAPSHOT_LISTING,
    CallPace,
    GcpClient,
    list_resources,
)
from gpudev.adapters.gcp.resources import (
    get_snapshot_path,
    get_zonal_disk_path,
    is_in_region,
    node_group_from_resource,
    snapshot_from_resource,
    volume_from_disk,
)
from gpudev.adapters.gcp.volumes import GcpDisks
from gpudev.ports.cloud import OWNER_TAG, NodeGroup, Snapshot, Volume
from gpudev.settings import GcpSettings

_T = TypeVar("_T")


class GcpCloud:
    def __init__(
        self,
        settings: GcpSettings,
        pace: CallPace | None = None,
        endpoint: str = "",
        *,
        environment: str | None = None,
    ) -> None:
        self._region = settings.region
        self._environment_tag = EnvironmentTag(environment)
        self._client = GcpClient(settings, pace or CallPace(), endpoint)
        self._disks = GcpDisks(self._client)

    @property
    def name(self) -> str:
        return "gcp"

    async def start(self) -> None:
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        """Zones may have groups of the same name; each is returned."""

        def read_own(group: Any) -> tuple[str, NodeGroup] | None:
            return (group.self_link, node_group_from_resource(group)) if group.name.startswith(prefix) else None

        found = await list_resources(self._client, GROUP_LISTING, read_own)
        return [group for _, group in sorted(found, key=lambda pair: (pair[1].name, pair[0]))]

    async def volumes(self) -> list[Volume]:
        volumes = await self._list_disks(volume_from_disk)
        volumes.sort(key=lambda volume: (volume.created_at, volume.volume_id))
        return self._environment_tag.select(volumes)

    async def snapshots(self) -> list[Snapshot]:
        """Snapshots are matched to disks by number, because a later disk may have the same name."""
        numbers = set(await self._list_disks(lambda disk: str(disk.id)))

        def read_own(snapshot: Any) -> Snapshot | None:
            is_ours = OWNER_TAG in snapshot.labels or snapshot.source_disk_id in numbers
            return (
                snapshot_from_resource(snapshot)
                if is_ours and is_in_region(snapshot.source_disk, self._region)
                else None
            )

        snapshots = await list_resources(self._client, SNAPSHOT_LISTING, read_own)
        snapshots.sort(key=lambda snapshot: (snapshot.created_at, snapshot.snapshot_id))
        return self._environment_tag.select(snapshots)

    async def _list_disks(self, read: Callable[[Any], _T]) -> list[_T]:
        def read_own(disk: Any) -> _T | None:
            return read(disk) if OWNER_TAG in disk.labels else None

        return await list_resources(self._client, DISK_LISTING, read_own, filter_text=f"labels.{OWNER_TAG}:*")

    async def find_volume(self, volume_id: str) -> Volume | None:
        disk = await self._disks.find_disk(get_zonal_disk_path(volume_id))
        return None if disk is None else volume_from_disk(disk)

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        tags = self._environment_tag.add_to(tags)
        disk = await self._disks.ensure_disk(token, size_gb=size_gb, zone=zone, tags=tags, from_snapshot=from_snapshot)
        return volume_from_disk(disk)

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume:
        return volume_from_disk(await self._disks.grow_disk(get_zonal_disk_path(volume_id), size_gb))

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        await self._disks.tag_disk(get_zonal_disk_path(volume_id), self._environment_tag.add_to(tags))

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        snapshot = await self._disks.find_snapshot(get_snapshot_path(snapshot_id))
        return None if snapshot is None else snapshot_from_resource(snapshot)

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        tags = self._environment_tag.add_to(tags)
        return snapshot_from_resource(await self._disks.ensure_snapshot(token, get_zonal_disk_path(volume_id), tags))

    async def remove_volume(self, volume_id: str) -> None:
        await self._disks.remove_disk(get_zonal_disk_path(volume_id))

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self._disks.remove_snapshot(get_snapshot_path(snapshot_id))
