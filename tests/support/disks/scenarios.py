"""Lives of disks: what people do with them, told as stories that a `check` listens to."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

from gpudev.domain.disks.operations import SnapshotReason
from gpudev.domain.errors import GpuDevError
from gpudev.domain.ids import DiskId
from support.disks.disk_world import ADA, BEN, DiskWorld
from support.disks.invariants import Watcher

Life = Callable[[DiskWorld, Callable[[], None]], None]


def stay(world: DiskWorld, disk_id: DiskId, check: Callable[[], None], zone: str = "zone-a", writes: int = 1) -> None:
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
    assert not world.release(one), "writers: it was released while its machine still had it"
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
    assert whys == [SnapshotReason.END_OF_RESERVATION] * 2


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
    world.let_go(one)
    world.store.release(disk)  # an operator freed it by hand: nobody ever asked for it to be put away
    del world.stays[one.reservation_id]
    world.settle()
    world.restore(disk, old)
    world.settle()
    check()


def leave_before_it_is_ready(world: DiskWorld, check: Callable[[], None]) -> None:
    """Cancelled while the disk is on its way to another zone: it lets go at once, and the next one finds everything."""
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    for steps in range(6):
        one = world.reserve(disk, "zone-b" if world.disk(disk).zone == "zone-a" else "zone-a")
        for _ in range(steps):
            world.work()
            world.clock.move(seconds=10)
        world.end(one)
        if not world.release(one):  # it was ready already
            world.settle()
            assert world.release(one)
        check()
        world.cloud.complete_snapshots()
    stay(world, disk, check)
    world.settle()
    check()


def restore_what_no_snapshot_could_hold(world: DiskWorld, check: Callable[[], None]) -> None:
    """Some of it was closed to whoever took the snapshot: the volume is the only one that has it, and stays."""
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    old = world.good_snapshots(disk)[0]
    world.cloud.closed_files = "1 that cannot be read: data"
    stay(world, disk, check)
    world.cloud.closed_files = None
    world.settle()
    check()
    with_all_of_it = world.disk(disk).volume_id
    world.restore(disk, old)
    world.settle()
    for days in (1, 60):
        world.clock.move(hours=24 * days)
        world.tidy()
        check()
    assert with_all_of_it in world.cloud.volumes_there, "retention: it went with what only it had"
    told = [event for disk_id, event in world.store.events if disk_id == disk]
    assert sum("lacks 1 that cannot be read: data" in event for event in told) == 1, told
    stay(world, disk, check)
    world.delete(disk)
    world.settle()
    world.clock.move(hours=24 * 31)
    world.tidy()
    world.settle()
    assert with_all_of_it not in world.cloud.volumes_there, "leaks: what was deleted is gone in the end"


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


def lose_the_volume(world: DiskWorld, check: Callable[[], None]) -> None:
    """Somebody removes the volume by hand: what was on it comes back from the snapshot of exactly that."""
    disk = world.create(ADA, "work")
    stay(world, disk, check)
    world.settle()
    volume_id = world.disk(disk).volume_id
    assert volume_id is not None
    world.cloud.destroy_volume(volume_id)
    check()
    stay(world, disk, check)
    world.settle()


def want_too_much(world: DiskWorld, check: Callable[[], None]) -> None:
    """More disks, larger ones, one name for two, smaller ones: what is refused is refused, and the rest holds."""
    for name in ("one", "two", "two", "three", "four"):
        with contextlib.suppress(GpuDevError):
            world.create(ADA, name, 20)
        world.settle()
        check()
    disk = world.living()[0].disk_id
    for size in (30, 10, 90):
        with contextlib.suppress(GpuDevError):
            world.resize(disk, size)
        world.settle()
        check()
    for name in ("two", "play"):
        with contextlib.suppress(GpuDevError):
            world.rename(disk, name)
        world.settle()
        check()


LIVES: list[Life] = [
    come_back,
    move_between_zones,
    restore_an_older_one,
    restore_what_was_not_saved,
    restore_what_no_snapshot_could_hold,
    leave_before_it_is_ready,
    clone,
    delete_and_have_back,
    delete_and_purge,
    purge_what_others_made,
    prune,
    grow_and_rename,
    lose_the_volume,
    want_too_much,
]


def live(life: Life, *, crash_at: int | None = None, after: bool = False) -> DiskWorld:
    world = DiskWorld()
    watcher = Watcher(world)
    world.trouble.crash_at, world.trouble.after = crash_at, after
    if crash_at is None:  # what holds, holds before every single call
        world.trouble.listener = watcher.check
    life(world, watcher.check)
    watcher.check()
    watcher.nothing_is_leaked()
    return world
