"""What goes by itself, and what the cloud does not let go: one that stays keeps no other, and is tried again."""

from dataclasses import replace

from gpudev.domain.disks.operations import DiskSettings, OperationKind, OperationState, SnapshotStatus
from gpudev.domain.ids import DiskId
from support.disks.disk_world import ADA, DiskWorld

FEW = DiskSettings(default_size_gb=10, keep_last=1, keep_daily_days=0, zone="zone-a")


def used(world: DiskWorld, disk: DiskId, times: int) -> None:
    for _ in range(times):
        stay = world.reserve(disk)
        world.settle()
        assert world.start(stay)
        world.write(stay)
        world.end(stay)
        world.settle()
        assert world.release(stay)


def outcomes(world: DiskWorld, kind: OperationKind) -> list[OperationState]:
    return [one.state for one in world.store.all_operations.values() if one.kind is kind]


def test_a_snapshot_that_the_cloud_does_not_let_go_keeps_no_other_and_is_tried_again() -> None:
    world = DiskWorld(FEW)
    disk = world.create(ADA, "work")
    used(world, disk, 4)
    oldest, *others, newest = sorted(world.cloud.snapshots_there)
    world.cloud.made_into_images.add(oldest)
    world.tidy()
    world.settle()
    assert sorted(world.cloud.snapshots_there) == [oldest, newest], others
    [pruned] = [one for one in world.store.all_operations.values() if one.kind is OperationKind.PRUNE]
    assert pruned.state is OperationState.FAILED
    assert pruned.error == f"snapshot {oldest} could not be removed: {oldest} is in use by an image"
    world.cloud.made_into_images.clear()
    world.tidy()
    world.settle()
    assert list(world.cloud.snapshots_there) == [newest]
    assert outcomes(world, OperationKind.PRUNE) == [OperationState.FAILED, OperationState.DONE]


def test_a_purge_removes_all_it_can_and_is_over_only_when_nothing_is_left() -> None:
    world = DiskWorld(FEW)
    disk = world.create(ADA, "work")
    used(world, disk, 3)
    oldest = min(world.cloud.snapshots_there)
    world.cloud.made_into_images.add(oldest)
    world.delete(disk)
    world.settle()
    world.clock.move(days=31)
    world.tidy()
    world.settle()
    assert (list(world.cloud.snapshots_there), world.cloud.volumes_there) == ([oldest], {})
    assert world.disk(disk).purged_at is None, "something of it is left"
    world.cloud.made_into_images.clear()
    world.tidy()
    world.settle()
    assert (world.cloud.snapshots_there, world.disk(disk).purged_at is not None) == ({}, True)
    assert outcomes(world, OperationKind.PURGE) == [OperationState.FAILED, OperationState.DONE]


def test_what_failed_once_is_removed_like_any_other() -> None:
    """Why it failed is no reason to pass it over."""
    world = DiskWorld(FEW)
    disk = world.create(ADA, "work")
    used(world, disk, 1)
    [record] = world.store.all_snapshots.values()
    world.store.all_snapshots[record.snapshot_id] = replace(record, status=SnapshotStatus.FAILED, error="it broke")
    used(world, disk, 1)
    world.tidy()
    world.settle()
    assert record.cloud_id not in world.cloud.snapshots_there
