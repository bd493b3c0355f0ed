"""What holds for disks at any moment, whoever died when. Each check is named after the promise it keeps."""

from collections import Counter

from gpudev.domain.disks.operations import DiskState, SnapshotStatus
from gpudev.domain.ids import DiskId
from gpudev.ports.cloud import SnapshotState
from support.disks.disk_world import DiskWorld
from support.disks.memory_cloud import Removal


class Watcher:
    """Looks after every step; it remembers only how far it has read what was removed, and how large disks were."""

    def __init__(self, world: DiskWorld) -> None:
        self.world = world
        self._volumes_read = 0
        self._snapshots_read = 0
        self._sizes: dict[DiskId, int] = {}

    def check(self) -> None:
        self.nothing_of_others_is_touched()
        self.one_volume_belongs_to_one_disk()
        self.only_holders_have_a_disk_attached()
        self.removed_volumes_may_go()
        self.removed_snapshots_may_go()
        self.what_was_last_seen_is_there()
        self.quotas_names_and_sizes_hold()

    def what_was_last_seen_is_there(self) -> None:
        world = self.world
        for disk_id, content in world.last_seen.items():
            disk = world.disk(disk_id)
            if content and not self._is_past_retention(disk_id):
                assert content in self._can_be_had(disk), f"bytes: {content!r} of disk {disk.name!r} is lost"

    def one_volume_belongs_to_one_disk(self) -> None:
        linked = Counter(disk.volume_id for disk in self.world.store.all_disks.values() if disk.volume_id)
        assert all(count == 1 for count in linked.values()), f"writers: two disks are on one volume: {linked}"

    def only_holders_have_a_disk_attached(self) -> None:
        for disk in self.world.store.all_disks.values():
            volume = self.world.cloud.volumes_there.get(disk.volume_id or "")
            for machine in volume.attached_to if volume else ():
                assert machine == str(disk.holder), f"writers: {machine} has the disk that {disk.holder} holds"

    def nothing_of_others_is_touched(self) -> None:
        cloud = self.world.cloud
        gone = self.world.foreign - cloud.volumes_there.keys() - cloud.snapshots_there.keys()
        assert not gone, f"others: {gone} was removed and was not ours"

    def removed_volumes_may_go(self) -> None:
        removals = self.world.cloud.removed_volumes
        for removal in removals[self._volumes_read :]:
            records = [one for one in self.world.store.all_volumes.values() if one.volume_id == removal.thing_id]
            assert records, f"others: volume {removal.thing_id} was removed and never recorded"
            disk_id = records[0].disk_id
            assert self._was_past_retention(disk_id, removal) or self._is_kept(disk_id, removal.content), (
                f"retention: volume {removal.thing_id} was removed, and {removal.content!r} with it"
            )
        self._volumes_read = len(removals)

    def removed_snapshots_may_go(self) -> None:
        removals = self.world.cloud.removed_snapshots
        for removal in removals[self._snapshots_read :]:
            records = [one for one in self.world.store.all_snapshots.values() if one.cloud_id == removal.thing_id]
            assert records, f"others: snapshot {removal.thing_id} was removed and never recorded"
            disk_id = records[0].disk_id
            assert self._was_past_retention(disk_id, removal) or self._completed(disk_id), (
                f"retention: the last good snapshot {removal.thing_id} was removed"
            )
        self._snapshots_read = len(removals)

    def quotas_names_and_sizes_hold(self) -> None:
        settings = self.world.settings
        for user_id in self.world.store.users:
            mine = [disk for disk in self.world.living() if disk.user_id == user_id]
            assert len(mine) <= settings.max_per_user, f"quota: {len(mine)} disks"
            taken = sum(disk.size_gb or 0 for disk in mine)
            assert taken <= settings.max_gb_per_user, f"quota: {taken} GB"
            assert len({disk.name for disk in mine}) == len(mine), "names: two living disks are called the same"
        for disk in self.world.store.all_disks.values():
            size = disk.size_gb or 0
            assert size >= self._sizes.get(disk.disk_id, 0), f"sizes: disk {disk.name!r} has become smaller"
            self._sizes[disk.disk_id] = size

    def nothing_is_leaked(self) -> None:
        """At rest: everything of ours in the cloud belongs to somebody."""
        world = self.world
        living = [disk for disk in world.store.all_disks.values() if disk.purged_at is None]
        linked = {disk.volume_id for disk in living}.union(*(world.kept_volumes(disk.disk_id) for disk in living))
        leaked = world.cloud.volumes_there.keys() - world.foreign - linked
        assert not leaked, f"leaks: volumes {leaked}"
        recorded = {one.cloud_id for one in world.store.all_snapshots.values() if one.status.is_usable}
        leaked = world.cloud.snapshots_there.keys() - world.foreign - recorded
        assert not leaked, f"leaks: snapshots {leaked}"
        half = [one for one in world.store.all_snapshots.values() if one.status is SnapshotStatus.BEGINNING]
        assert not half, f"leaks: {half[0]} was begun and forgotten"

    # --- within ----------------------------------------------------------------------------------------------------

    def _can_be_had(self, disk: DiskState) -> set[str]:
        """By using the disk, or by restoring a snapshot of it; by an operator where no snapshot could hold it."""
        world = self.world
        there = {disk.volume_id} & world.cloud.volumes_there.keys()
        there |= world.kept_volumes(disk.disk_id)
        there |= {one.cloud_id for one in world.good_snapshots(disk.disk_id)}
        if disk.saved_as is not None and world.store.all_snapshots[disk.saved_as].status.is_usable:
            there |= {world.store.all_snapshots[disk.saved_as].cloud_id} & world.cloud.snapshots_there.keys()
        return {world.cloud.contents[one] for one in there if one is not None}

    def _completed(self, disk_id: DiskId) -> bool:
        there = self.world.cloud.snapshots_there
        return any(
            there[one.cloud_id].state is SnapshotState.COMPLETED
            for one in self.world.good_snapshots(disk_id)
            if one.cloud_id is not None
        )

    def _is_kept(self, disk_id: DiskId, content: str) -> bool:
        """What a volume held when it was removed is in a finished snapshot that can be restored."""
        there = self.world.cloud.snapshots_there
        return any(
            there[one.cloud_id].state is SnapshotState.COMPLETED and self.world.cloud.contents[one.cloud_id] == content
            for one in self.world.good_snapshots(disk_id)
            if one.cloud_id is not None
        )

    def _is_past_retention(self, disk_id: DiskId) -> bool:
        deleted_at = self.world.deleted_at.get(disk_id)
        return deleted_at is not None and deleted_at + self.world.settings.retention <= self.world.clock.now()

    def _was_past_retention(self, disk_id: DiskId, removal: Removal) -> bool:
        deleted_at = self.world.deleted_at.get(disk_id)
        return deleted_at is not None and deleted_at + self.world.settings.retention <= removal.at
