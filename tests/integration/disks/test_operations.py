"""The actor over a cloud in memory: silence, refusals, lost answers and company; and over the real store."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.domain.disks.operations import (
    CloneDisk,
    CreateDisk,
    DeleteDisk,
    DiskRequest,
    DiskSettings,
    MakeReady,
    Operation,
    OperationState,
    PutAway,
    RestoreDisk,
    SnapshotDisk,
    SnapshotReason,
    SnapshotStatus,
)
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import new_disk_id
from gpudev.ports.cloud import SnapshotState
from gpudev.workflows.disks.operations import DiskOperations
from support.clock import ManualClock
from support.disks.disk_queries import disk_history, disks_of
from support.disks.disk_world import ADA, DiskWorld, now_or_never
from support.disks.due_operations import run_due
from support.disks.memory_cloud import MemoryCloud
from support.disks.postgres_store import PostgresStoreWorld


def operation(world: DiskWorld, index: int = -1) -> Operation:
    return list(world.store.all_operations.values())[index]


def test_a_cloud_that_does_not_answer_is_asked_again_later_and_everybody_can_read_why() -> None:
    world = DiskWorld()
    world.trouble.errors["ensure_volume"] = [Unavailable("the line is down")] * 6
    world.create(ADA, "work", zone="zone-a")
    world.work()
    waiting = operation(world)
    assert (waiting.state, waiting.error, waiting.attempts) == (OperationState.RUNNING, "the line is down", 1)
    assert waiting.next_attempt_at == world.clock.now() + timedelta(seconds=2)
    world.work()
    assert world.trouble.names.count("ensure_volume") == 1, "it was asked before its time"
    world.clock.move(hours=1)
    world.settle()
    assert (operation(world).state, operation(world).error) == (OperationState.DONE, None)
    assert len(world.cloud.volumes_there) == 1


def test_a_volume_that_the_cloud_refuses_ends_in_words_and_the_name_is_free_again() -> None:
    world = DiskWorld()
    world.trouble.errors["ensure_volume"] = [ClusterError("VolumeLimitExceeded")] * 3
    world.create(ADA, "work", zone="zone-a")
    world.settle()
    assert (operation(world).state, operation(world).error) == (OperationState.FAILED, "VolumeLimitExceeded")
    world.create(ADA, "work", zone="zone-a")
    world.settle()
    assert operation(world).state is OperationState.DONE


@pytest.mark.parametrize("call", ["ensure_volume", "ensure_snapshot"])
def test_an_answer_that_was_lost_makes_nothing_twice(call: str) -> None:
    world = DiskWorld()
    disk = world.create(ADA, "work", zone="zone-a")
    world.trouble.lost_answers[call] = Unavailable("the line broke")
    world.settle()
    world.snapshot(disk)
    world.settle()
    assert (len(world.cloud.volumes_there), len(world.cloud.snapshots_there)) == (1, 1)
    assert call not in world.trouble.lost_answers


def test_a_look_that_is_refused_tells_nothing() -> None:
    world = DiskWorld()
    disk = world.create(ADA, "work", zone="zone-a")
    world.settle()
    world.trouble.errors["find_volume"] = [ClusterError("no permission")] * 5
    world.snapshot(disk)
    world.work()
    assert (operation(world).state, operation(world).error) == (OperationState.RUNNING, "no permission")
    world.settle()
    assert operation(world).state is OperationState.DONE


def test_a_snapshot_that_the_cloud_gives_up_is_taken_again_once() -> None:
    world = DiskWorld()
    disk = world.create(ADA, "work", zone="zone-a")
    world.settle()
    world.snapshot(disk)
    world.work()
    world.cloud.complete_snapshots(SnapshotState.ERROR)
    world.settle()
    assert operation(world).state is OperationState.DONE
    statuses = [one.status for one in world.store.all_snapshots.values()]
    assert statuses == [SnapshotStatus.FAILED, SnapshotStatus.COMPLETED]


def test_a_disk_is_put_away_also_where_no_snapshot_can_be_taken() -> None:
    world = DiskWorld()
    disk = world.create(ADA, "work")
    stay = world.reserve(disk)
    world.settle()
    assert world.start(stay)
    world.write(stay)
    world.end(stay)
    world.let_go(stay)
    world.trouble.errors["ensure_snapshot"] = [ClusterError("SnapshotLimitExceeded")] * 6
    world.settle()
    assert operation(world).state is OperationState.DONE
    assert "SnapshotLimitExceeded" in (operation(world).result or "")
    assert world.release(stay)
    again = world.reserve(disk)
    world.settle()
    assert world.start(again), "what was written is on the volume"


def test_two_that_work_on_the_same_do_it_once() -> None:
    """A second one works on everything between any two calls of the first."""
    world = DiskWorld()
    other = DiskOperations(world.store, world.cloud, world.clock, world.settings, "another")
    busy = False

    def meddle() -> None:
        nonlocal busy
        if not busy:
            busy = True
            now_or_never(run_due(other))
            busy = False

    world.trouble.listener = meddle
    disk = world.create(ADA, "work")
    for _ in range(2):
        stay = world.reserve(disk, "zone-b" if world.cloud.volumes_there else "zone-a")
        world.settle()
        assert world.start(stay)
        world.write(stay)
        world.end(stay)
        world.let_go(stay)
        world.settle()
        assert world.release(stay)
    assert {one.state for one in world.store.all_operations.values()} == {OperationState.DONE}
    assert len(world.cloud.volumes_there) == 1
    assert len(world.cloud.snapshots_there) == 2


def test_a_snapshot_that_cannot_be_seen_stops_no_other_from_being_settled() -> None:
    world = DiskWorld()
    stays = [world.reserve(world.create(ADA, name)) for name in ("one", "two")]
    world.settle()
    for stay in stays:
        world.end(stay)
    world.work()
    world.cloud.complete_snapshots()
    world.trouble.errors["find_snapshot"] = [ClusterError("no permission")]
    first = now_or_never(world.actor.settle_snapshots())
    assert (first.count, len(first.errors)) == (1, 1)
    second = now_or_never(world.actor.settle_snapshots())
    assert (second.count, second.errors) == (1, ())


def test_a_snapshot_that_is_too_new_to_be_seen_is_settled_later() -> None:
    world = DiskWorld()
    stay = world.reserve(world.create(ADA, "work"))
    world.settle()
    world.end(stay)
    world.work()
    world.cloud.complete_snapshots()
    hidden = dict(world.cloud.snapshots_there)
    world.cloud.snapshots_there.clear()
    actor = replace(world.actor, appears_within=timedelta(minutes=1))
    settled = now_or_never(actor.settle_snapshots())
    assert (settled.count, settled.left) == (0, 1)
    world.cloud.snapshots_there.update(hidden)
    assert now_or_never(actor.settle_snapshots()).count == 1
    assert [one.status for one in world.store.all_snapshots.values()] == [SnapshotStatus.COMPLETED]


def test_what_is_too_new_to_be_seen_is_not_taken_for_gone() -> None:
    """Whoever made it remembers; who takes over from one that ended does not."""
    world = DiskWorld()
    disk = world.create(ADA, "work", zone="zone-a")
    world.settle()
    hidden = dict(world.cloud.volumes_there)
    world.cloud.volumes_there.clear()
    actor = replace(world.actor, appears_within=timedelta(hours=1))
    world.snapshot(disk)
    now_or_never(run_due(actor))
    assert operation(world).state is OperationState.RUNNING
    assert "cannot be seen yet" in str(operation(world).error)
    world.cloud.volumes_there.update(hidden)
    world.clock.move(minutes=10)
    now_or_never(run_due(actor))
    [taken] = world.store.all_snapshots.values()
    hidden_snapshots = dict(world.cloud.snapshots_there)
    world.cloud.snapshots_there.clear()
    world.clock.move(minutes=10)
    now_or_never(run_due(actor))
    assert world.store.all_snapshots[taken.snapshot_id].status is SnapshotStatus.PENDING
    world.cloud.snapshots_there.update(hidden_snapshots)
    world.clock.move(minutes=10)
    world.settle()
    assert (operation(world).state, operation(world).error) == (OperationState.DONE, None)


def test_what_is_gone_for_longer_is_gone() -> None:
    world = DiskWorld()
    disk = world.create(ADA, "work", zone="zone-a")
    world.settle()
    world.cloud.volumes_there.clear()
    world.clock.move(minutes=2)
    world.snapshot(disk)
    now_or_never(run_due(replace(world.actor, appears_within=timedelta(minutes=1))))
    assert operation(world).error == "no volume to take a snapshot of"


def test_growing_is_waited_for() -> None:
    world = DiskWorld()
    disk = world.create(ADA, "work", zone="zone-a")
    world.settle()
    world.cloud.grows_slowly = True
    world.resize(disk, 30)
    world.work()
    assert (operation(world).state, world.disk(disk).size_gb) == (OperationState.RUNNING, 10)
    world.cloud.grows_slowly = False
    world.settle()
    assert (operation(world).state, world.disk(disk).size_gb) == (OperationState.DONE, 30)


async def test_a_life_over_the_real_store(postgres_world: PostgresStoreWorld, clock: ManualClock) -> None:
    """Used, moved to another zone, restored, cloned, deleted and purged: as in memory, with PostgreSQL underneath."""
    cloud = MemoryCloud(clock)
    actor = DiskOperations(postgres_world.store, cloud, clock, DiskSettings(default_size_gb=10))
    ada, store = postgres_world.ada, postgres_world.store

    async def finish(request: DiskRequest) -> Operation:
        asked = await actor.request_operation(ada, request)
        assert asked is not None
        for _ in range(20):
            await run_due(actor)
            cloud.complete_snapshots()
            clock.move(seconds=10)
            now = await store.find_operation(asked.operation_id)
            assert now is not None
            if now.state.is_finished:
                await actor.settle_snapshots()
                assert now.state is OperationState.DONE, now
                return now
        raise AssertionError(f"stuck: {now}")

    async def use(write: str, zone: str) -> str:
        reservation_id = await postgres_world.claim(work)
        await finish(MakeReady(work, reservation_id, zone))
        volume_id = (await postgres_world.disk(work)).volume_id
        assert volume_id is not None
        found = cloud.contents[volume_id]
        cloud.attach(volume_id, "i-1")
        cloud.write(volume_id, write)
        cloud.detach(volume_id)
        await finish(PutAway(work, reservation_id, "listing-of-" + write))
        await postgres_world.release(work)
        return found

    work, copy = new_disk_id(), new_disk_id()
    await finish(CreateDisk(work, "work"))
    assert await use("first", "zone-a") == ""
    assert await use("second", "zone-b") == "first"
    assert (await postgres_world.disk(work)).contents == "listing-of-second"
    first = (await store.snapshots(work))[-1]
    assert (first.why, first.contents) == (SnapshotReason.END_OF_RESERVATION, "listing-of-first")
    await finish(SnapshotDisk(work))
    await finish(RestoreDisk(work, first.snapshot_id))
    assert await use("third", "zone-b") == "first"
    await finish(CloneDisk(copy, work, "copy"))
    clone = await postgres_world.disk(copy)
    assert clone.volume_id is not None
    assert cloud.contents[clone.volume_id] == "third"
    await finish(DeleteDisk(work))
    clock.move(days=31)
    asked = await actor.request_upkeep()
    assert asked
    await run_due(actor)
    assert set(cloud.volumes_there) == {clone.volume_id}
    assert cloud.snapshots_there == {}
    assert [one.name for one in await disks_of(postgres_world.stores, ada)] == ["copy"]
    lines = [line["message"] for line in await disk_history(postgres_world.stores, work)]
    assert lines[0] == "created, 10 GB"
    assert lines[-1] == "purge: removed"
