"""The end of a reservation whose disk cannot be put away for a long time: it is put away all the same, only later."""

import asyncio

import pytest

from gpudev.domain.disks.operations import CreateDisk, OperationState, SnapshotReason, SnapshotStatus
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import new_disk_id, short_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cloud import Snapshot, SnapshotState, Volume
from support.disks.disk_processor import DiskStays


async def _check_kept(stays: DiskStays) -> None:
    [kept] = await stays.snapshots()
    assert (kept.why, kept.status) == (SnapshotReason.END_OF_RESERVATION, SnapshotStatus.COMPLETED)
    assert kept.cloud_id is not None
    assert stays.cloud.contents[kept.cloud_id] == "precious"
    assert (await stays.disk()).saved_as == kept.snapshot_id


async def test_a_disk_that_nobody_could_look_at_when_its_reservation_ended_is_kept_later(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.write(rid, "precious")
    stays.cloud.trouble.errors["find_volume"] = [Unavailable("no answer")] * 1000
    await stays.cancel(rid)
    await stays.go_on()
    stays.clock.move(minutes=6)
    await stays.go_on()
    assert await stays.is_released(rid), "nobody's GPUs wait for the cloud"
    assert await stays.snapshots() == []
    stays.cloud.trouble.errors.clear()
    stays.clock.move(minutes=6)
    await stays.go_on(6)
    await _check_kept(stays)


@pytest.mark.slow
async def test_a_volume_that_detaches_long_after_its_reservation_is_kept_before_anybody_has_it_next(
    stays: DiskStays,
) -> None:
    rid = await stays.start()
    stays.write(rid, "precious")
    stays.cluster.lets_go = False
    await stays.cancel(rid)
    await stays.go_on()
    stays.clock.move(minutes=6)
    await stays.go_on()
    assert await stays.is_released(rid)
    assert "is still attached" in (await stays.messages(rid))[-1]
    again = await stays.submit(8, disk="data")
    await stays.go_on()
    assert await stays.status(again) is Status.PREPARING
    assert await stays.snapshots() == [], "nobody takes a snapshot of what may still be written to"
    stays.cluster.let_go(rid)
    await stays.go_on(6)
    [kept] = await stays.snapshots()
    assert kept.why is SnapshotReason.END_OF_RESERVATION
    assert stays.cloud.contents[str(kept.cloud_id)] == "precious"
    assert await stays.status(again) is Status.ACTIVE
    assert stays.read(again) == "precious"
    assert (await stays.disk()).saved_as is None, "from now on somebody writes"


async def test_a_snapshot_that_breaks_long_after_the_end_is_told_in_the_disks_history(stays: DiskStays) -> None:
    stays.cloud.takes_time = True
    rid = await stays.start()
    stays.write(rid, "precious")
    await stays.cancel(rid)
    await stays.go_on()
    assert await stays.is_released(rid)
    stays.clock.move(hours=5)
    stays.cloud.complete_snapshots(SnapshotState.ERROR)
    await stays.work.run_round()
    [broken] = await stays.snapshots()
    assert broken.status is SnapshotStatus.FAILED
    history = [event.message for event in await stays.stores.disk_views.list_disk_events(broken.disk_id)]
    told = f"snapshot {short_id(broken.snapshot_id)} failed: the cloud could not finish it"
    assert told in history
    stays.cloud.takes_time = False
    assert stays.read(await stays.start()) == "precious"


@pytest.mark.slow
async def test_a_cloud_that_does_not_answer_about_snapshots_keeps_nobody_from_anything_else(
    stays: DiskStays, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays.cloud.takes_time = True
    await stays.cancel(await stays.start())
    await stays.go_on()
    answers = asyncio.Event()
    look = stays.cloud.find_snapshot

    async def hang(snapshot_id: str) -> Snapshot | None:
        await answers.wait()
        return await look(snapshot_id)

    monkeypatch.setattr(stays.cloud, "find_snapshot", hang)
    stays.clock.move(seconds=20)
    async with asyncio.timeout(10):  # a loop that does not come round for long is taken for dead
        await stays.work.run_round()
        operation = await stays.work.operations.request_operation(
            await stays.user("ada"), CreateDisk(new_disk_id(), "more"), key="more"
        )
        created = operation.operation_id
        await stays.work.run_round()
        await stays.work.advance(created, 5)
    made = await stays.stores.disk_operations.find_operation(created)
    assert made is not None
    assert made.state is OperationState.DONE
    stays.cloud.complete_snapshots()
    answers.set()
    await stays.work.wait_idle()
    assert [one.status for one in await stays.snapshots()] == [SnapshotStatus.COMPLETED]


@pytest.mark.slow
async def test_a_launch_waits_only_briefly_for_a_look_at_its_volume(
    stays: DiskStays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches of others, and ends, have the same few places."""
    await stays.cancel(await stays.start())
    await stays.go_on()
    answers = asyncio.Event()
    look = stays.cloud.find_volume

    async def hang(volume_id: str) -> Volume | None:
        await answers.wait()
        return await look(volume_id)

    monkeypatch.setattr(stays.cloud, "find_volume", hang)
    rid = await stays.submit(8, disk="data")
    async with asyncio.timeout(15):
        await stays.turn(2)
    assert await stays.status(rid) is Status.PREPARING
    assert (await stays.get(rid)).step == "disk 'data': waiting", "and it is told what for"
    answers.set()
    await stays.go_on(6)
    assert await stays.status(rid) is Status.ACTIVE
