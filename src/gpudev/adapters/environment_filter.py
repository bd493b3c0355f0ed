"""Two environments behind one account: each sees the volumes and snapshots that it made, and those that nobody marked.

Whatever is made here is marked with the environment's name. What bears another's is passed over in listings, so that
nobody offers, counts or deletes it; what bears none was made before there were marks, or by hand, and is told to all.
Who asks by an id knows what they mean.
"""

from collections.abc import Mapping
from typing import TypeVar

from gpudev.ports.cloud import ENVIRONMENT_TAG, Cloud, NodeGroup, Snapshot, Volume

_Resource = TypeVar("_Resource", Volume, Snapshot)


class EnvironmentFilter:
    """A cloud, as far as it is one environment's."""

    def __init__(self, cloud: Cloud, environment: str) -> None:
        self._cloud = cloud
        self._environment = environment

    @property
    def name(self) -> str:
        return self._cloud.name

    async def start(self) -> None:
        await self._cloud.start()

    async def close(self) -> None:
        await self._cloud.close()

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        return await self._cloud.node_groups(prefix)

    async def volumes(self) -> list[Volume]:
        return self._own(await self._cloud.volumes())

    async def snapshots(self) -> list[Snapshot]:
        return self._own(await self._cloud.snapshots())

    async def find_volume(self, volume_id: str) -> Volume | None:
        return await self._cloud.find_volume(volume_id)

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        return await self._cloud.ensure_volume(
            token, size_gb=size_gb, zone=zone, tags=self._with_environment(tags), from_snapshot=from_snapshot
        )

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume:
        return await self._cloud.grow_volume(volume_id, size_gb)

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        await self._cloud.tag_volume(volume_id, self._with_environment(tags))

    async def is_detached(self, volume_id: str) -> bool:
        return await self._cloud.is_detached(volume_id)

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        return await self._cloud.find_snapshot(snapshot_id)

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        return await self._cloud.ensure_snapshot(token, volume_id, self._with_environment(tags))

    async def remove_volume(self, volume_id: str) -> None:
        await self._cloud.remove_volume(volume_id)

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self._cloud.remove_snapshot(snapshot_id)

    def _with_environment(self, tags: Mapping[str, str]) -> dict[str, str]:
        return {**tags, ENVIRONMENT_TAG: self._environment}

    def _own(self, found: list[_Resource]) -> list[_Resource]:
        return [one for one in found if one.tags.get(ENVIRONMENT_TAG, self._environment) == self._environment]
