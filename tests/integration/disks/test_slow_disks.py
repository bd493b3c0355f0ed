"""Disks that take long, fail or are not wanted any more: what their reservations are told, and what they wait for."""

import asyncio

import pytest

from gpudev.domain.disks.operations import OperationKind, SnapshotStatus
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.reservations.lifecycle import Status
from support.disks.disk_processor import DiskStays


@pytest.mark.slow
async def test_what_takes_long_is_told_and_has_a_deadline_of_its_own(stays: DiskStays) -> None:
    stays.cloud.going.clear()
    rid = await stays.submit(8, disk="data")
    await stays.turn(2)
    assert (await stays.get(rid)).step == "disk 'data': making a volume in zone-a"
    stays.clock.move(minutes=40)  # longer than a dev server may take
    await stays.turn(1)
    assert await stays.status(rid) is Status.PREPARING
    stays.cloud.going.set()
    await stays.work.wait_idle()
    stays.cluster.ready_at_once = False
    await stays.go_on()
    row = await stays.get(rid)
    assert (row.status, row.step) == (Status.PREPARING, "starting on paper")
    assert row.prepare_by is not None
    assert row.prepare_by > stays.clock.now(), "the time for starting begins when the disk is ready"
    told = [message for message in await stays.messages(rid) if message.startswith("disk")]
    assert told == [
        "disk 'data': making a volume in zone-a",
        f"disk 'data': volume {(await stays.disk()).volume_id} is ready, new",
    ]


async def test_a_cloud_that_never_answers_fails_the_reservation_in_the_end(stays: DiskStays) -> None:
    stays.cloud.trouble.errors["ensure_volume"] = [Unavailable("no answer")] * 1000
    rid = await stays.submit(8, disk="data")
    await stays.go_on()
    assert (await stays.get(rid)).step == "disk 'data': making a volume in zone-a (no answer)"
    stays.clock.move(minutes=61)
    await stays.go_on()
    row = await stays.get(rid)
    assert row.status is Status.FAILED
    assert str(row.failure_reason).startswith("not ready within 60 minutes; last step: disk 'data'")


@pytest.mark.slow
async def test_a_disk_of_which_no_snapshot_can_be_taken_is_free_all_the_same(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.write(rid, "precious")
    stays.cloud.trouble.errors["ensure_snapshot"] = [ClusterError("too many snapshots")] * 6
    await stays.cancel(rid)
    await stays.go_on(12)
    assert await stays.is_released(rid)
    assert "no snapshot: no snapshot could be taken: too many snapshots" in (await stays.messages(rid))[-1]
    assert {one.status for one in await stays.snapshots()} == {SnapshotStatus.FAILED}
    assert stays.read(await stays.start()) == "precious"


async def test_a_silent_cloud_keeps_nobodys_gpus_for_long_and_the_next_one_waits_for_the_disk(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.write(rid, "precious")
    stays.cloud.trouble.errors["ensure_snapshot"] = [Unavailable("no answer")] * 1000
    await stays.cancel(rid)
    await stays.go_on()
    assert not await stays.is_released(rid)
    stays.clock.move(minutes=5)
    await stays.go_on()
    assert await stays.is_released(rid)
    assert "not put away yet" in (await stays.messages(rid))[-1]
    again = await stays.submit(8, disk="data")
    await stays.go_on()
    assert await stays.status(again) is Status.PREPARING
    assert "waits for put away" in str((await stays.get(again)).step)
    stays.cloud.trouble.errors.clear()
    stays.clock.move(minutes=5)
    await stays.go_on(6)
    assert await stays.status(again) is Status.ACTIVE
    assert stays.read(again) == "precious"


@pytest.mark.slow
async def test_one_that_is_cancelled_while_its_disk_is_made_ready_lets_go_at_once_and_never_starts(
    stays: DiskStays,
) -> None:
    stays.cloud.going.clear()
    rid = await stays.submit(8, disk="data")
    await stays.turn(2)
    await stays.cancel(rid)
    await stays.turn(2)
    assert await stays.is_released(rid), "nobody's GPUs wait for the cloud"
    assert "(disk 'data': was still being made ready: making a volume in zone-a)" in (await stays.messages(rid))[-1]
    again = await stays.submit(8, disk="data")
    await stays.turn(2)
    assert "waits for make ready" in str((await stays.get(again)).step), "the disk is busy until it is made"
    stays.cloud.going.set()
    await stays.work.wait_idle()
    await stays.go_on(6)
    assert await stays.status(again) is Status.ACTIVE
    assert stays.cluster.launches == 1
    results = {one.reservation_id: one.result for one in await stays.operations(OperationKind.MAKE_READY)}
    assert results[rid] == "the reservation ended before it was ready"
    assert "is ready" in str(results[again])
    assert len(stays.cloud.volumes_there) == 1, "nothing is made and forgotten"


@pytest.mark.slow
async def test_one_that_is_cancelled_during_a_restore_keeps_what_the_snapshot_holds(stays: DiskStays) -> None:
    first = await stays.start()
    stays.write(first, "precious")
    await stays.cancel(first)
    await stays.go_on()
    [kept] = await stays.snapshots()
    volume_id = (await stays.disk()).volume_id
    assert volume_id is not None
    stays.cloud.destroy_volume(volume_id)  # so that the next one has to wait for a restore
    stays.cloud.going.clear()
    second = await stays.submit(8, disk="data")
    await stays.turn(2)
    await stays.cancel(second)
    await stays.turn(2)
    assert await stays.is_released(second)
    stays.cloud.going.set()
    await stays.work.wait_idle()
    await stays.go_on()
    disk = await stays.disk()
    assert disk.saved_as == kept.snapshot_id, "nobody wrote to it"
    assert disk.volume_id is not None
    assert stays.cloud.contents[disk.volume_id] == "precious"
    assert stays.read(await stays.start()) == "precious"


async def test_nothing_is_torn_down_while_it_is_still_being_launched(stays: DiskStays) -> None:
    """Or the dev server would come to be on a disk that another has by then."""
    stays.cluster.launching = asyncio.Event()
    rid = await stays.submit(8, disk="data")
    await stays.processor.acquire_lease()
    await stays.processor.run_cycle()
    await asyncio.wait_for(stays.cluster.has_begun.wait(), 20)
    await stays.cancel(rid)
    await stays.processor.run_cycle()
    await asyncio.sleep(0.1)  # nothing happens, and nothing tells when it would have
    assert not await stays.is_released(rid)
    stays.cluster.launching.set()
    stays.cluster.launching = None
    await stays.go_on()
    assert await stays.is_released(rid)
    assert stays.cluster.attached == {}
    assert rid not in stays.cluster.servers


async def test_a_disk_that_has_to_wait_wakes_nobody_until_there_is_news(stays: DiskStays) -> None:
    """Or the loop would ask for it again and again as fast as it can."""
    stays.cloud.trouble.errors["ensure_volume"] = [Unavailable("no answer")] * 1000
    rid = await stays.submit(8, disk="data")
    await stays.go_on()
    news: list[str] = []
    stays.work.on_progress = lambda: news.append("moved")
    await stays.turn(3)
    await stays.work.wait_idle()
    assert await stays.status(rid) is Status.PREPARING
    assert news == []
    stays.cloud.trouble.errors.clear()
    stays.clock.move(minutes=5)
    await stays.go_on()
    assert news != []


async def test_news_that_comes_while_somebody_asks_for_a_disk_is_not_lost(
    stays: DiskStays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before the news says to wait; nobody would ask again until the sweep."""
    stays.cloud.trouble.errors["ensure_volume"] = [Unavailable("no answer")] * 1000
    await stays.submit(8, disk="data")
    await stays.turn(2)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait_for_news(*_: object) -> None:
        asked.set()
        await go_on.wait()

    for is_news in (False, True):
        asked.clear()
        go_on.clear()
        monkeypatch.setattr(stays.work, "advance", wait_for_news)
        await stays.processor.run_cycle()
        await asked.wait()
        if is_news:
            await stays.processor.run_cycle()
        stays.processor._woken.clear()
        go_on.set()
        await stays.processor.effects.wait_idle()
        await asyncio.sleep(0)
        assert stays.processor._woken.is_set() == is_news
