"""What goes wrong on the way to AWS and there, beyond what every cloud's contract says of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from contracts.cloud_contract import is_detached
from contracts.cloud_worlds import LONG_AGO, Listing, ours
from gpudev.adapters.aws.client import CallLimits
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import SnapshotState
from gpudev.settings import AwsSettings
from support.clouds.aws_stub import AwsStub, Cut, Delay, Fault, Nonsense, Refuse, Reset
from support.clouds.aws_stub.account import OTHER_OWNER_ID
from support.clouds.aws_stub.faults import SERVER_ERROR
from support.clouds.aws_stub.query import Request
from support.clouds.aws_world import HASTY, StubWorld


@pytest.fixture
def world(stub: AwsStub, cloud: AwsCloud) -> StubWorld:
    return StubWorld(stub, cloud)


async def opened(limits: CallLimits, region: str = "us-east-2") -> AsyncIterator[AwsCloud]:
    cloud = AwsCloud(AwsSettings(region), limits)
    await cloud.start()
    yield cloud
    await cloud.close()


# --- listings --------------------------------------------------------------------------------------------------------


async def test_pages_that_filters_left_empty_do_not_end_a_listing(world: StubWorld) -> None:
    nobodys = [await world.give_volume(tags={}) for _ in range(12)]
    made = await world.give_many(Listing.VOLUMES, 3)
    nobodys += [await world.give_volume(tags={}) for _ in range(12)]
    world.pages_of(5)
    world.stub.pages.sparse = True
    assert await world.told(Listing.VOLUMES) == made
    assert len(world.stub.called) > 4


async def test_a_listing_whose_place_has_expired_is_not_told(world: StubWorld) -> None:
    await world.give_many(Listing.VOLUMES, 23)
    world.pages_of(5)
    asked = 0

    def expire(request: object) -> bool:
        nonlocal asked
        asked += 1
        world.stub.pages.age += asked == 3
        return False

    world.stub.faults.append(Fault(SERVER_ERROR, expire))
    with pytest.raises(Unavailable, match="pagination token"):
        await world.cloud.volumes()
    assert asked == 3
    assert len(await world.cloud.volumes()) == 23


@pytest.mark.parametrize("listing", Listing)
async def test_an_answer_that_only_seems_to_be_whole_is_not_told(world: StubWorld, listing: Listing) -> None:
    await world.give_many(listing, 23)
    world.stub.faults.append(Fault(Cut(declared=False)))
    with pytest.raises(Unavailable):
        await world.told(listing)


@pytest.mark.parametrize("body", [b"", b"OK", b"{}", b"<html/>", b"<DescribeVolumesResponse/>"])
async def test_no_success_without_a_listing_is_an_empty_one(world: StubWorld, body: bytes) -> None:
    await world.give_many(Listing.VOLUMES, 2)
    world.stub.faults.append(Fault(Nonsense(body)))
    with pytest.raises(Unavailable):
        await world.cloud.volumes()


async def test_a_page_that_failed_once_is_asked_for_again(world: StubWorld) -> None:
    made = await world.give_many(Listing.SNAPSHOTS, 23)
    world.pages_of(5)
    for effect in (SERVER_ERROR, Cut(), Reset(after_the_effect=True)):
        with world.stub.faulty(Fault(effect, lambda request: request.page == 3, times=1)):
            assert await world.told(Listing.SNAPSHOTS) == made


async def test_volumes_that_are_on_their_way_out_are_not_told(world: StubWorld) -> None:
    going, there = [await world.give_volume(tags=ours()) for _ in range(2)]
    world.stub.account.volumes[going].state = "deleting"
    assert await world.told(Listing.VOLUMES) == [there]
    assert await world.cloud.find_volume(going) is None


async def test_a_volume_is_had_until_it_is_let_go_for_good(world: StubWorld) -> None:
    volume_id = await world.give_volume(tags=ours())
    await world.attach(volume_id)
    [attachment] = world.stub.account.volumes[volume_id].attachments
    for state, detached in (("attaching", False), ("detaching", False), ("busy", False), ("detached", True)):
        attachment.state = state
        assert await is_detached(world.cloud, volume_id) is detached, state


async def test_snapshots_of_other_accounts_are_not_told(world: StubWorld) -> None:
    volume_id = await world.give_volume(tags=ours())
    world.stub.account.give_snapshot(volume_id, ours(), owner_id=OTHER_OWNER_ID)
    assert await world.cloud.snapshots() == []


async def test_a_volume_that_came_between_two_listings_counts_for_the_second(world: StubWorld) -> None:
    await world.cloud.volumes()
    await world.cloud.snapshots()
    volume_id = await world.give_volume(tags=ours())
    by_hand = await world.give_snapshot(volume_id, tags={})
    assert await world.told(Listing.SNAPSHOTS) == [by_hand]


async def test_both_listings_may_be_asked_for_at_once(world: StubWorld) -> None:
    volume_id = await world.give_volume(tags=ours())
    await world.give_snapshot(volume_id, tags={})
    volumes, snapshots = await asyncio.gather(world.cloud.volumes(), world.cloud.snapshots())
    assert (len(volumes), len(snapshots)) == (1, 1)


async def test_names_may_be_of_any_letters(world: StubWorld) -> None:
    tags = ours("Zoë <&> 'Ångström'", 'größe "1"', note="", leer=" ")
    volume_id = await world.give_volume(tags=tags)
    await world.give_snapshot(volume_id, tags=tags)
    [volume], [snapshot] = await world.cloud.volumes(), await world.cloud.snapshots()
    assert volume.tags == snapshot.tags == tags
    found = await world.cloud.find_volume(volume_id)
    assert found == volume


# --- time ------------------------------------------------------------------------------------------------------------


async def test_an_answer_that_never_comes_is_given_up(stub: AwsStub) -> None:
    stub.faults.append(Fault(Delay(seconds=30)))
    async for cloud in opened(replace(HASTY, attempts=1, read_timeout=timedelta(seconds=0.2))):
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable):
                await cloud.volumes()


async def test_an_answer_that_trickles_is_given_up(stub: AwsStub) -> None:
    stub.account.fill(50, 1, since=LONG_AGO)
    stub.faults.append(Fault(Delay(seconds=0.05, drip=20)))
    async for cloud in opened(replace(HASTY, deadline=timedelta(seconds=0.5))):
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable, match="did not answer"):
                await cloud.volumes()


@pytest.mark.slow
async def test_throttling_that_does_not_end_is_given_up_and_said(world: StubWorld) -> None:
    world.throttle(1000)
    with pytest.raises(Unavailable, match="AWS throttles"):
        await world.cloud.volumes()
    with pytest.raises(Unavailable, match="AWS throttles"):
        await world.cloud.node_groups("")


async def test_nobody_signed_in_is_unavailable_and_said(stub: AwsStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async for cloud in opened(HASTY):
        with pytest.raises(Unavailable, match="credentials"):
            await cloud.volumes()


async def test_a_wrong_secret_and_a_wrong_region_are_refused(stub: AwsStub, monkeypatch: pytest.MonkeyPatch) -> None:
    async for cloud in opened(HASTY, region="eu-central-1"):
        with pytest.raises(ClusterError, match="ec2:DescribeVolumes"):
            await cloud.volumes()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    async for cloud in opened(HASTY):
        with pytest.raises(ClusterError, match="SignatureDoesNotMatch"):
            await cloud.volumes()
    assert stub.called == []


async def test_one_that_was_closed_says_so(cloud: AwsCloud) -> None:
    await cloud.close()
    with pytest.raises(Unavailable, match="not open"):
        await cloud.volumes()


# --- making and changing ---------------------------------------------------------------------------------------------


async def test_a_snapshot_is_asked_for_once_when_nobody_knows_what_came_of_it(world: StubWorld) -> None:
    volume = await world.new_volume()
    with world.requests_lost(), pytest.raises(Unavailable):
        await world.new_snapshot(volume.volume_id)
    assert [request.action for request in world.stub.called].count("CreateSnapshot") == 1


async def test_a_snapshot_whose_answer_was_lost_is_found_though_it_appears_late(world: StubWorld) -> None:
    volume = await world.new_volume()
    world.hide_the_new(2)
    with world.answers_lost():
        snapshot = await world.new_snapshot(volume.volume_id)
    assert list(world.stub.account.snapshots) == [snapshot.snapshot_id]


@pytest.mark.parametrize("code", ["SnapshotCreationPerVolumeRateExceeded", "ConcurrentSnapshotLimitExceeded"])
async def test_a_snapshot_that_aws_does_not_take_so_soon_is_asked_for_again(world: StubWorld, code: str) -> None:
    """Only a moment ago there was one of this volume, or there are many at once: that passes."""
    volume = await world.new_volume()
    too_soon = Fault(Refuse(code), lambda request: request.action == "CreateSnapshot", times=1)
    world.stub.faults.append(too_soon)
    await world.new_snapshot(volume.volume_id)
    assert len(world.stub.account.snapshots) == 1
    too_soon.times = None
    with pytest.raises(Unavailable, match=code):
        await world.new_snapshot(volume.volume_id)


async def test_a_volume_that_has_failed_is_told_with_the_reason(world: StubWorld) -> None:
    volume = await world.new_volume()
    world.stub.account.volumes[volume.volume_id].state = "error"
    found = await world.cloud.find_volume(volume.volume_id)
    assert found is not None
    assert found.busy_reason == f"volume {volume.volume_id} has failed in AWS"


async def test_a_process_that_comes_after_finds_what_the_one_before_made(world: StubWorld) -> None:
    token, snapshot_token = str(uuid4()), str(uuid4())
    volume = await world.new_volume(token)
    snapshot = await world.cloud.ensure_snapshot(snapshot_token, volume.volume_id, ours())
    async for later in opened(HASTY):
        again = await later.ensure_volume(token, size_gb=99, zone="us-east-2c", tags={})
        assert again.volume_id == volume.volume_id
        found = await later.ensure_snapshot(snapshot_token, volume.volume_id, {})
        assert found.snapshot_id == snapshot.snapshot_id


async def test_a_copy_that_carries_our_tags_is_not_taken_for_our_snapshot(world: StubWorld) -> None:
    volume, token = await world.new_volume(), str(uuid4())
    snapshot = await world.cloud.ensure_snapshot(token, volume.volume_id, ours())
    copy = world.stub.account.copy_snapshot(snapshot.snapshot_id)
    copy.created_at = datetime(2000, 1, 1, tzinfo=UTC)
    async for later in opened(HASTY):
        found = await later.ensure_snapshot(token, volume.volume_id, ours())
        assert found.snapshot_id == snapshot.snapshot_id
        await later.remove_snapshot(snapshot.snapshot_id)
        made = await later.ensure_snapshot(token, volume.volume_id, ours())
        assert made.snapshot_id not in (snapshot.snapshot_id, copy.snapshot_id)


async def test_a_token_that_stood_for_something_else_is_refused(world: StubWorld) -> None:
    token = str(uuid4())
    world.hide_the_new(5)
    await world.new_volume(token)
    with pytest.raises(ClusterError, match="client token"):
        await world.cloud.ensure_volume(token, size_gb=77, zone=world.zone, tags=ours())
    assert len(world.stub.account.volumes) == 1


async def test_what_is_done_to_a_new_volume_waits_until_it_can_be_seen(world: StubWorld) -> None:
    world.hide_the_new(2)
    volume = await world.new_volume()
    await world.cloud.tag_volume(volume.volume_id, {"disk-name": "renamed"})
    assert world.stub.account.volumes[volume.volume_id].tags["disk-name"] == "renamed"
    other = await world.new_volume()
    await world.cloud.remove_volume(other.volume_id)
    assert list(world.stub.account.volumes) == [volume.volume_id]


async def test_a_volume_that_is_being_grown_is_not_grown_twice(world: StubWorld) -> None:
    world.stub.account.grows_at_once = False
    volume = await world.new_volume()
    for _ in range(3):
        assert (await world.cloud.grow_volume(volume.volume_id, 20)).size_gb == 10
    world.stub.account.let_grow(volume.volume_id)
    assert (await world.cloud.grow_volume(volume.volume_id, 20)).size_gb == 20
    assert [request.action for request in world.stub.called].count("ModifyVolume") == 1


async def test_growing_whose_answer_was_lost_goes_on(world: StubWorld) -> None:
    volume = await world.new_volume()
    with world.stub.faulty(Fault(Reset(after_the_effect=True), lambda request: request.is_change, times=1)):
        assert (await world.cloud.grow_volume(volume.volume_id, 20)).size_gb == 20


async def test_a_volume_that_was_grown_a_moment_ago_cannot_grow_yet_and_that_is_said(world: StubWorld) -> None:
    volume = await world.new_volume()
    await world.cloud.grow_volume(volume.volume_id, 20)
    world.stub.account.modifications[volume.volume_id].state = "completed"
    with pytest.raises(ClusterError, match="maximum modification rate"):
        await world.cloud.grow_volume(volume.volume_id, 30)


async def test_nothing_counts_as_done_that_something_else_answered(world: StubWorld) -> None:
    volume = await world.new_volume()
    snapshot = await world.new_snapshot(volume.volume_id)
    with world.stub.faulty(Fault(Nonsense(), lambda request: request.is_change)):
        for act in (
            lambda: world.cloud.remove_volume(volume.volume_id),
            lambda: world.cloud.remove_snapshot(snapshot.snapshot_id),
            lambda: world.cloud.tag_volume(volume.volume_id, {"a": "b"}),
            world.new_volume,
            lambda: world.new_snapshot(volume.volume_id),
        ):
            with pytest.raises(Unavailable):
                await act()
    assert list(world.stub.account.volumes) == [volume.volume_id]
    assert list(world.stub.account.snapshots) == [snapshot.snapshot_id]


async def test_a_snapshot_that_is_not_complete_becomes_no_volume(world: StubWorld) -> None:
    volume = await world.new_volume()
    begun = await world.new_snapshot(volume.volume_id)
    assert begun.state is SnapshotState.PENDING
    with pytest.raises(ClusterError, match="completed"):
        await world.cloud.ensure_volume(
            str(uuid4()), size_gb=10, zone=world.zone, tags=ours(), from_snapshot=begun.snapshot_id
        )


async def test_a_refusal_names_the_action_and_what_aws_said(world: StubWorld) -> None:
    volume = await world.new_volume()
    world.stub.faults.append(
        Fault(Refuse("VolumeLimitExceeded", "You have too many"), lambda request: request.is_change)
    )
    with pytest.raises(ClusterError, match=r"ec2:CreateVolume: You have too many \(VolumeLimitExceeded\)"):
        await world.new_volume()
    with pytest.raises(ClusterError, match="ec2:CreateSnapshot"):
        await world.new_snapshot(volume.volume_id)


@pytest.mark.parametrize("volume_id", ["", "nonsense", "vol-0123"])
async def test_what_could_be_no_volume_is_none(world: StubWorld, volume_id: str) -> None:
    assert await world.cloud.find_volume(volume_id) is None


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("fatal", [1, 2, 3])
async def test_a_process_that_dies_over_any_request_leaves_one_volume_and_one_snapshot(
    world: StubWorld, fatal: int, arrives: bool
) -> None:
    """It dies over its first, second … request, of which some still arrive; at last another goes to the end."""
    token, snapshot_token = str(uuid4()), str(uuid4())
    volume_id = await world.give_volume(tags=ours())
    for what in ("volume", "snapshot"):
        async for mortal in opened(HASTY):
            task = asyncio.ensure_future(
                mortal.ensure_volume(token, size_gb=10, zone=world.zone, tags=ours())
                if what == "volume"
                else mortal.ensure_snapshot(snapshot_token, volume_id, ours())
            )
            with world.stub.faulty(Fault(Reset(after_the_effect=False), _deadly(task, fatal, arrives))):
                await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled() is (fatal <= 2), "one request looks, one makes"
    await world.new_volume(token)
    await world.cloud.ensure_snapshot(snapshot_token, volume_id, ours())
    assert (len(world.stub.account.volumes), len(world.stub.account.snapshots)) == (2, 1)


def _deadly(task: "asyncio.Future[Any]", fatal: int, arrives: bool) -> Callable[[Request], bool]:
    """Over which request whoever waits for the task dies; whether what it sent is lost."""
    asked = 0

    def strikes(_: Request) -> bool:
        nonlocal asked
        asked += 1
        if asked == fatal:
            task.cancel()
        return asked == fatal and not arrives

    return strikes
