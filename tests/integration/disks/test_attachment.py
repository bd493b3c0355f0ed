"""A reservation's disk: ready before its dev server starts, put away before it is released, and never lost between."""

import itertools
import random
from uuid import uuid4

import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.disks.operations import (
    CreateDisk,
    OperationId,
    OperationKind,
    OperationState,
    SnapshotDisk,
    SnapshotReason,
    SnapshotStatus,
)
from gpudev.domain.errors import ClusterError, DiskHeld
from gpudev.domain.ids import new_disk_id
from gpudev.domain.queue import DISK_QUEUE, dead_letter_queue
from gpudev.domain.reservations.lifecycle import Status
from gpudev.planning.disks.attachment import AttachmentRequest, attach_at_once
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.settings import Settings
from gpudev.workflows.disks.operations import DiskOperations
from support.clock import ManualClock
from support.disks.disk_processor import DISKS, DiskStays, Life
from support.disks.disk_queries import disk_history


async def test_a_dev_server_starts_on_the_volume_of_its_disk(stays: DiskStays) -> None:
    rid = await stays.start()
    disk = await stays.disk()
    volume = stays.cluster.specs[rid].volume
    assert volume is not None
    assert (volume.volume_id, volume.size_gb, volume.zone) == (disk.volume_id, 10, "zone-a")
    assert stays.cloud.volumes_there[volume.volume_id].attached_to
    [ready] = await stays.operations(OperationKind.MAKE_READY)
    assert (ready.state, ready.reservation_id) == (OperationState.DONE, rid)
    assert f"disk 'data': volume {volume.volume_id} is ready, new" in await stays.messages(rid)


async def test_one_without_a_disk_asks_the_cloud_nothing(stays: DiskStays) -> None:
    rid = await stays.start("none")
    await stays.cancel(rid)
    await stays.go_on()
    assert await stays.is_released(rid)
    assert stays.cluster.specs[rid].volume is None
    assert stays.cloud.trouble.names == []


async def test_the_disk_is_put_away_before_the_reservation_is_released(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.write(rid, "precious")
    stays.cluster.lets_go = False
    await stays.cancel(rid)
    await stays.go_on()
    assert not await stays.is_released(rid), "the machine still has the volume"
    successor = await stays.submit(8, disk="data")
    await stays.go_on()
    assert successor not in stays.cluster.specs
    await stays.cancel(successor)
    stays.cluster.let_go(rid)
    await stays.go_on()
    assert await stays.is_released(rid)
    [snapshot] = await stays.snapshots()
    assert snapshot.why is SnapshotReason.END_OF_RESERVATION
    assert snapshot.status.is_usable and snapshot.cloud_id is not None
    assert stays.cloud.contents[snapshot.cloud_id] == "precious"
    assert (await stays.disk()).saved_as == snapshot.snapshot_id
    assert f"(disk 'data': snapshot {str(snapshot.snapshot_id)[:8]})" in (await stays.messages(rid))[-1]
    assert stays.read(await stays.start()) == "precious"


async def test_one_with_free_gpus_waits_for_its_disk_and_says_for_whom(stays: DiskStays) -> None:
    first = await stays.submit(1, disk=None)
    await stays.go_on()
    stays.write(first, "precious")
    stays.cluster.lets_go = False
    await stays.cancel(first)
    second = await stays.submit(1, disk=None)
    await stays.go_on()
    row = await stays.get(second)
    assert (row.status, row.disk_name, row.scratch_reason) == (Status.PREPARING, "default", None)
    assert row.step == f"disk 'default': waits until reservation {str(first)[:8]}, which has ended, releases it"
    assert second not in stays.cluster.specs
    stays.cluster.let_go(first)
    await stays.go_on(8)
    assert await stays.status(second) is Status.ACTIVE
    assert stays.read(second) == "precious"


async def test_no_file_is_lost_whenever_the_next_one_is_submitted(stays: DiskStays) -> None:
    """Submit, write, end, submit: the next one comes after any number of cycles, or while the cloud holds on."""
    chances = random.Random(19)
    written: list[str] = []
    rid = await stays.submit(1, disk=None)
    for round_number in range(12):
        stays.cluster.lets_go = True
        for late in list(stays.cluster.attached.keys() - {rid}):
            stays.cluster.let_go(late)
        await stays.go_on(12, until=lambda row: row.is_released or row.status is Status.ACTIVE)
        assert await stays.status(rid) is Status.ACTIVE, await stays.messages(rid)
        assert stays.read(rid) == "".join(written)
        written.append(f"{round_number} ")
        stays.write(rid, "".join(written))
        stays.cluster.lets_go = chances.random() < 0.5
        await stays.cancel(rid)
        await stays.go_on(chances.randrange(3))
        if chances.random() < 0.3:  # one that gives up in between
            given_up = await stays.submit(1, disk=None)
            await stays.go_on(chances.randrange(2))
            await stays.cancel(given_up)
        rid = await stays.submit(1, disk=None)
        assert (await stays.get(rid)).scratch_reason is None


async def test_a_disk_that_cannot_be_made_ready_fails_the_reservation_and_says_why(stays: DiskStays) -> None:
    stays.cloud.trouble.errors["ensure_volume"] = [ClusterError("the quota of volumes is used up")] * 3
    rid = await stays.submit(8, disk="data")
    await stays.go_on(8)
    row = await stays.get(rid)
    assert row.status is Status.FAILED
    assert row.failure_reason == "its disk 'data' could not be made ready: the quota of volumes is used up"
    assert row.is_released
    assert stays.cluster.launches == 0, "never on something else"
    assert await stays.start(), "the disk is free, and the next one may be luckier"


async def test_a_disk_whose_files_are_nowhere_is_never_replaced_by_an_empty_one(stays: DiskStays) -> None:
    rid = await stays.start()
    lost = stays.cluster.attached.pop(rid)
    stays.cloud.destroy_volume(lost)
    await stays.cancel(rid)
    await stays.go_on()
    again = await stays.submit(8, disk="data")
    await stays.go_on()
    assert f"volume {lost} of disk 'data' is gone" in str((await stays.get(again)).failure_reason)
    assert stays.cluster.launches == 1


async def test_one_that_is_placed_anew_keeps_its_disk(stays: DiskStays) -> None:
    stays.cluster.ready_at_once = False
    rid = await stays.submit(8, disk="data")
    await stays.go_on()
    home = stays.cluster.specs[rid].volume
    [node] = stays.cluster.nodes
    stays.cluster.nodes = (type(node)(node.name, node.gpu_type, node.units, schedulable=False, zone=node.zone),)
    why = "the node was closed"
    stays.cluster.servers[rid] = ServerState(rid, ServerPhase.STARTING, step="waits", reason=why, rejection=why)
    await stays.go_on()
    row = await stays.get(rid)
    assert (row.status, row.shares, row.prepare_by) == (Status.QUEUED, (), None)
    with pytest.raises(DiskHeld):
        await stays.submit(8, disk="data")
    stays.cluster.nodes = (node,)
    stays.cluster.ready_at_once = True
    await stays.go_on()
    assert await stays.status(rid) is Status.ACTIVE
    assert stays.cluster.specs[rid].volume == home
    assert len(await stays.operations(OperationKind.MAKE_READY)) == 1, "it was ready already"


async def test_a_dev_server_that_was_lost_starts_again_on_the_same_volume(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.write(rid, "precious")
    stays.cluster.kill(rid, unwatched=True)
    stays.restart()
    await stays.go_on()
    assert stays.cluster.launches == 2
    assert await stays.status(rid) is Status.ACTIVE
    assert stays.read(rid) == "precious"
    assert len(await stays.operations(OperationKind.MAKE_READY)) == 1


async def test_the_backstop_puts_disks_away_too(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.clock.move(hours=5)
    assert stays.processor._lease is not None
    await stays.stores.leases.release(stays.processor._lease)
    stays.restart()
    report = await stays.processor.expire()
    assert report is not None
    assert report.unfinished == []
    assert await stays.is_released(rid)
    assert [one.why for one in await stays.snapshots()] == [SnapshotReason.END_OF_RESERVATION]


async def test_a_disk_that_is_in_use_for_long_is_kept_once_a_day(stays: DiskStays) -> None:
    rid = await stays.submit(8, disk="data", hours=47)
    await stays.go_on()
    stays.write(rid, "day one")
    stays.clock.move(hours=23)
    await stays.go_on()
    assert await stays.snapshots() == [], "the end of most reservations comes sooner"
    stays.clock.move(hours=2)
    await stays.go_on()
    [kept] = await stays.snapshots()
    assert (kept.why, stays.cloud.contents[str(kept.cloud_id)]) == (SnapshotReason.SCHEDULED, "day one")
    assert (await stays.disk()).saved_as is None, "somebody writes on"
    stays.clock.move(hours=1)
    await stays.go_on()
    assert len(await stays.snapshots()) == 1
    stays.write(rid, "day two")
    await stays.cancel(rid)
    await stays.go_on()
    newest, _ = await stays.snapshots()
    assert (newest.why, stays.cloud.contents[str(newest.cloud_id)]) == (SnapshotReason.END_OF_RESERVATION, "day two")


async def test_one_that_cannot_be_kept_in_use_is_tried_again_a_day_later_and_goes_on(stays: DiskStays) -> None:
    rid = await stays.submit(8, disk="data", hours=100)
    await stays.go_on()
    stays.cloud.trouble.errors["ensure_snapshot"] = [ClusterError("too many snapshots")] * 6
    stays.clock.move(hours=25)
    await stays.go_on(8)
    assert await stays.status(rid) is Status.ACTIVE
    assert {one.status for one in await stays.snapshots()} == {SnapshotStatus.FAILED}
    history = [event.message for event in await stays.stores.disk_views.list_disk_events((await stays.disk()).disk_id)]
    assert "snapshot failed: no snapshot could be taken: too many snapshots" in history
    tried = len(await stays.snapshots())
    stays.clock.move(hours=1)
    await stays.go_on()
    assert len(await stays.snapshots()) == tried
    stays.clock.move(hours=25)
    await stays.go_on()
    assert [one.why for one in await stays.snapshots() if one.status.is_usable] == [SnapshotReason.SCHEDULED]


async def live(world: DiskStays) -> None:
    """One stay and the start of the next, whoever dies meanwhile: what the first one left is there for the second."""
    first = await world.submit(8, disk="data")
    await world.go_on(20, until=lambda row: row.status is Status.ACTIVE)
    assert world.read(first) == "", await world.messages(first)
    world.write(first, "precious")
    await world.cancel(first)
    await world.go_on(20, until=lambda row: row.is_released)
    assert await world.is_released(first), await world.messages(first)
    second = await world.submit(8, disk="data")
    await world.go_on(20, until=lambda row: row.status is Status.ACTIVE)
    assert world.read(second) == "precious", await world.messages(second)
    [kept] = await world.snapshots()
    assert kept.cloud_id is not None
    assert world.cloud.contents[kept.cloud_id] == "precious"
    assert len(world.cloud.volumes_there) == len(world.cloud.snapshots_there) == 1, "nothing is made and forgotten"


@pytest.mark.slow
async def test_a_processor_may_die_after_any_step(stores: Stores, clock: ManualClock, settings: Settings) -> None:
    """Each life with one death, the first after the first call, until one has not so many calls. How many there are is
    not always the same: what takes longer than a moment is told, too."""
    for number in itertools.count(1):
        world = DiskStays.begin(stores, clock, settings, Life(number))
        await live(world)
        await world.close()
        await forget_everything(stores)
        if world.life.deaths == 0:
            break
    assert number > 15


async def forget_everything(stores: Stores) -> None:
    async with stores.pool.acquire() as connection:
        await connection.execute("TRUNCATE reservations, disks, leases CASCADE")


async def test_what_others_ask_for_is_carried_out_and_its_message_read(stays: DiskStays) -> None:
    elsewhere = DiskOperations(stays.stores.disk_operations, stays.cloud, stays.clock, DISKS, by="api")
    asked = await elsewhere.request_operation(await stays.user(), CreateDisk(new_disk_id(), "data", 20))
    assert asked is not None
    await stays.work.run_round()
    await stays.work.wait_idle()
    disk = await stays.disk()
    assert disk.volume_id is not None
    assert stays.cloud.volumes_there[disk.volume_id].size_gb == 20
    assert await stays.stores.message_queue.peek_messages(DISK_QUEUE) == []


async def test_a_message_that_names_nothing_ends_among_the_dead_letters(stays: DiskStays) -> None:
    async with stays.stores.pool.acquire() as connection:
        await connection.execute("SELECT pgmq.send($1, $2::jsonb)", DISK_QUEUE, {"hello": "world"})
        for _ in range(3):
            await connection.execute("UPDATE pgmq.q_disk_operations SET vt = clock_timestamp() - interval '1 minute'")
            await stays.work.run_round()
    [letter] = await stays.stores.message_queue.peek_messages(dead_letter_queue(DISK_QUEUE))
    assert letter.body["hello"] == "world"


async def test_a_snapshot_that_is_finished_later_is_settled(stays: DiskStays) -> None:
    stays.cloud.takes_time = True
    rid = await stays.start()
    await stays.cancel(rid)
    await stays.go_on()
    assert await stays.is_released(rid), "nobody waits for the cloud to finish it"
    assert [one.status for one in await stays.snapshots()] == [SnapshotStatus.PENDING]
    stays.cloud.complete_snapshots()
    stays.clock.move(seconds=20)
    await stays.work.run_round()
    assert [one.status for one in await stays.snapshots()] == [SnapshotStatus.COMPLETED]


@pytest.mark.slow
async def test_whoever_waits_for_an_operation_hears_of_it_and_nobody_else(stays: DiskStays) -> None:
    heard: list[str] = []
    stays.work.on_progress = lambda: heard.append("moved")
    stays.work.on_notification(str(new_disk_id()))
    assert heard == []
    stays.cloud.going.clear()
    rid = await stays.submit(8, disk="data")
    await stays.turn(1)
    await stays.turn(1)
    [ready] = await stays.operations(OperationKind.MAKE_READY)
    stays.work.on_notification(str(ready.operation_id))
    assert heard == ["moved"]
    stays.cloud.going.set()
    await stays.work.wait_idle()
    assert heard == ["moved", "moved"]
    await stays.go_on()
    assert await stays.status(rid) is Status.ACTIVE
    before = len(heard)
    stays.work.on_notification(str(ready.operation_id))
    assert len(heard) == before
    stays.work.on_notification(None)
    assert len(heard) == before + 1, "after a lost connection anything may have happened"


async def test_a_disk_as_it_was_left_takes_one_look_and_no_message(stays: DiskStays) -> None:
    await stays.cancel(await stays.start())
    await stays.go_on()
    stays.cloud.trouble.names.clear()
    rid = await stays.submit(8, disk="data")
    await stays.turn()
    assert await stays.status(rid) is Status.ACTIVE
    assert stays.cloud.trouble.names == ["find_volume"]
    assert await stays.stores.message_queue.peek_messages(DISK_QUEUE) == []
    disk = await stays.disk()
    assert disk.saved_as is None, "from here on a dev server may write"
    history = [line["message"] for line in await disk_history(stays.stores, disk.disk_id)]
    assert history[-1] == f"make ready: volume {disk.volume_id} is ready, as it was left"


async def test_what_is_under_way_on_a_disk_is_never_overtaken(stays: DiskStays) -> None:
    """Nor is what somebody asks for at the very moment: the row is no longer as it was read."""
    await stays.cancel(await stays.start())
    await stays.go_on()
    rid = await stays.submit(8, disk="data")
    disk = await stays.disk()
    held = stays.stores.attachments
    assert disk.volume_id is not None
    volume = await stays.cloud.find_volume(disk.volume_id)
    asked = AttachmentRequest(OperationId(uuid4()), rid, "zone-a", stays.clock.now())
    stale = attach_at_once(asked, disk, volume, DISKS)
    elsewhere = DiskOperations(stays.stores.disk_operations, stays.cloud, stays.clock, DISKS, by="api")
    await elsewhere.request_operation(await stays.user(), SnapshotDisk(disk.disk_id))
    assert stale is not None
    assert not await held.write_finished_operation(stale, "a", now=stays.clock.now(), by="test")
    fresh = attach_at_once(asked, await stays.disk(), volume, DISKS)
    assert fresh is not None
    assert not await held.write_finished_operation(fresh, "b", now=stays.clock.now(), by="test")
    assert len(await stays.operations(OperationKind.MAKE_READY)) == 1, "the first stay's"
    await stays.go_on()
    assert await stays.status(rid) is Status.ACTIVE
