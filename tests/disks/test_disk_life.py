"""Lives of disks, every one of them told again with the process dying before and after each single call."""

from collections.abc import Callable

import pytest

from disks.invariants import Watcher
from disks.memory_cloud import Crash
from disks.world import ADA, BEN, DiskWorld
from gpudev.domain.disk_operations import OperationKind, OperationState, VolumeStatus, Why

Life = Callable[[DiskWorld, Callable[[], None]], None]


def stay(world: DiskWorld, disk_id, check, zone: str = "zone-a", writes: int = 1) -> None:  # type: ignore[no-untyped-def]
    """A whole reservation: ready, written to, ended, put away, released."""
    one = world.reserve(disk_id, zone)
    check()
    for _ in range(30):
        world.work()
        if world.start(one):
            break
        world.cloud.complete_snapshots()
        world.clock.move(seconds=10)
    assert one.volume_id is not None
    for _ in range(writes):
        world.write(one)
        check()
    world.end(one)
    world.work()
    assert not world.release(one), "the machine still has it"
    check()
    world.let_go(one)
    for _ in range(30):
        world.clock.move(seconds=10)
        world.work()
        check()
        if world.release(one):
            return
    raise AssertionError("it was never released")


def come_back(world: DiskWorld, check: Callable[[], None]) -> None:
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    stay(world, disk, check)
    world.settle()
    check()
    whys = [one.why for one in world.good_snapshots(disk)]
    assert whys == [Why.END_OF_RESERVATION] * 2


def move_between_zones(world: DiskWorld, check: Callable[[], None]) -> None:
    disk = world.create(ADA, "work")
    stay(world, disk, check, "zone-a")
    stay(world, disk, check, "zone-b")
    assert world.disk(disk).zone == "zone-b"
    stay(world, disk, check, "zone-a", writes=0)
    world.settle()
    check()


def restore_an_older_one(world: DiskWorld, check: Callable[[], None]) -> None:
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    old = world.good_snapshots(disk)[0]
    stay(world, disk, check)
    world.scanner_copies()
    world.settle()
    check()
    world.restore(disk, old)
    for _ in range(8):
        world.work()
        check()
        world.cloud.complete_snapshots()
        world.clock.move(seconds=10)
    world.settle()
    check()
    assert world.last_seen[disk] == "write 1"
    stay(world, disk, check)
    world.settle()


def restore_what_was_not_saved(world: DiskWorld, check: Callable[[], None]) -> None:
    """The volume was written to after its last snapshot: that has to be kept before it is given up."""
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    old = world.good_snapshots(disk)[0]
    one = world.reserve(disk)
    world.settle()
    world.start(one)
    world.write(one)
    world.end(one)
    world.let_go(one)
    world.store.release(disk)  # an operator freed it by hand, before it was put away
    del world.stays[one.reservation_id]
    world.settle()
    world.restore(disk, old)
    world.settle()
    check()


def clone(world: DiskWorld, check: Callable[[], None]) -> None:
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    copy = world.clone(disk, "copy")
    check()
    stay(world, disk, check)
    world.settle()
    check()
    assert world.last_seen[copy] == "write 1"
    stay(world, copy, check)
    stay(world, disk, check)
    check()
    world.settle()


def delete_and_have_back(world: DiskWorld, check: Callable[[], None]) -> None:
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    world.delete(disk)
    world.settle()
    check()
    world.clock.move(days=29)
    world.tidy()
    check()
    other = world.create(ADA, "work")
    world.settle()
    world.undelete(disk, "work-again")
    world.settle()
    check()
    stay(world, disk, check)
    stay(world, other, check)
    world.settle()


def delete_and_purge(world: DiskWorld, check: Callable[[], None]) -> None:
    disk, kept = world.create(ADA, "work"), world.create(BEN, "work")
    for _ in range(2):
        stay(world, disk, check)
        stay(world, kept, check)
    world.settle()
    world.scanner_copies()
    world.delete(disk)
    world.settle()
    world.clock.move(days=31)
    world.tidy()
    world.settle()
    check()
    assert world.disk(disk).purged_at is not None
    assert world.disk(disk).volume_id is None
    stay(world, kept, check)
    world.settle()


def purge_what_others_made(world: DiskWorld, check: Callable[[], None]) -> None:
    """A volume that was found and recorded, and not made here, stays when its disk is purged."""
    found = world.somebody_elses_volume()
    disk = world.create(ADA, "work")
    world.settle()
    from dataclasses import replace

    world.store._put(replace(world.disk(disk), volume_id=found, zone="zone-a"))
    world.last_seen[disk] = "theirs"
    world.delete(disk)
    world.settle()
    world.clock.move(days=31)
    world.tidy()
    world.settle()
    check()
    assert world.disk(disk).purged_at is not None


def prune(world: DiskWorld, check: Callable[[], None]) -> None:
    disk = world.create(ADA, "work")
    for _ in range(6):
        stay(world, disk, check)
        world.settle()
        world.scanner_copies()
        world.clock.move(hours=1)
    world.clock.move(days=10)
    world.tidy()
    world.settle()
    check()
    assert len(world.good_snapshots(disk)) == world.settings.keep_last
    world.clock.move(days=300)
    world.tidy()
    world.settle()
    check()


def grow_and_rename(world: DiskWorld, check: Callable[[], None]) -> None:
    disk = world.create(ADA, "work", 20, "zone-a")
    world.settle()
    stay(world, disk, check)
    one = world.reserve(disk)
    world.settle()
    world.start(one)
    world.resize(disk, 30)
    world.settle()
    world.snapshot(disk)
    world.settle()
    check()
    world.end(one)
    world.let_go(one)
    world.settle()
    assert world.release(one)
    world.rename(disk, "play")
    world.settle()
    check()
    volume = world.cloud.volumes_there[world.disk(disk).volume_id or ""]
    assert (volume.disk_name, volume.size_gb, world.disk(disk).size_gb) == ("play", 30, 30)
    stay(world, disk, check)
    world.settle()


LIVES: list[Life] = [
    come_back,
    move_between_zones,
    restore_an_older_one,
    restore_what_was_not_saved,
    clone,
    delete_and_have_back,
    delete_and_purge,
    purge_what_others_made,
    prune,
    grow_and_rename,
]


def live(life: Life, *, crash_at: int | None = None, after: bool = False) -> DiskWorld:
    world = DiskWorld()
    watcher = Watcher(world)
    world.trouble.crash_at, world.trouble.after = crash_at, after
    life(world, watcher.check)
    watcher.check()
    watcher.nothing_is_leaked()
    return world


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_a_life_without_a_crash_keeps_every_promise(life: Life) -> None:
    world = live(life)
    assert {one.state for one in world.store.all_operations.values()} == {OperationState.DONE}


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_a_life_with_a_crash_at_any_call_keeps_every_promise(life: Life, after: bool) -> None:
    calls = live(life).trouble.calls
    assert calls > 5
    for crash_at in range(1, calls + 1):
        try:
            world = live(life, crash_at=crash_at, after=after)
        except (AssertionError, Crash) as error:
            raise AssertionError(f"with a crash {'after' if after else 'before'} call {crash_at}: {error}") from error
        assert world.crashes == 1


def test_old_volumes_are_gone_once_another_took_their_place() -> None:
    world = live(move_between_zones)
    statuses = [one.status for one in world.store.all_volumes.values()]
    assert statuses == [VolumeStatus.REMOVED, VolumeStatus.REMOVED, VolumeStatus.KEPT]
    kinds = {one.kind for one in world.store.all_operations.values()}
    assert kinds == {OperationKind.CREATE, OperationKind.MAKE_READY, OperationKind.PUT_AWAY}
