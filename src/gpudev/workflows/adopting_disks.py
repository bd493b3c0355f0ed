"""Disks from before there were volumes: each is a folder under the disk's own id, and becomes the volume of that id.

Nothing is moved or copied. It may be stopped anywhere and run again.
"""

from dataclasses import dataclass

from gpudev.domain.disks.operations import DiskSettings
from gpudev.ports.clock import Clock
from gpudev.ports.cloud import DISK_ID_TAG, DISK_NAME_TAGS, OWNER_TAG, CloudDisks
from gpudev.ports.disks import UnlinkedDisks


@dataclass(frozen=True, slots=True)
class DiskAdoption:
    store: UnlinkedDisks
    cloud: CloudDisks
    """One machine's own."""
    clock: Clock
    settings: DiskSettings

    async def adopt_all(self) -> int:
        """How many were adopted."""
        adopted = 0
        for disk in await self.store.list_unlinked_disks():
            volume_id = str(disk.disk_id)
            if await self.cloud.find_volume(volume_id) is None:
                continue  # never used: its volume is made when it is
            tags = {OWNER_TAG: disk.username, DISK_NAME_TAGS[0]: disk.name, DISK_ID_TAG: volume_id}
            await self.cloud.tag_volume(volume_id, tags)
            volume = await self.cloud.grow_volume(volume_id, disk.size_gb or self.settings.default_size_gb)
            adopted += await self.store.adopt_volume(disk, volume, self.settings.zone, now=self.clock.now())
        return adopted
