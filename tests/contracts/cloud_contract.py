"""What every cloud promises. An adapter's tests derive from the contracts that it keeps and give them a `world`:

`CloudViewContract` and `CloudDisksContract` what is seen and done; `NodeGroupsContract` where there are groups of
nodes; `CloudFaultsContract` where the world can be made to misbehave (a stub of ours, not a fake of others).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest

from contracts.cloud_worlds import LONG_AGO, CloudViewWorld, CloudWorld, FaultyWorld, GroupsWorld, Listing, ours
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import DISK_ID_TAG, OWNER_TAG, RECORDED_TAG, CloudDisks, NodeGroup, SnapshotState
from support.polling import eventually_async

PATIENCE_S = 20.0


async def is_detached(cloud: CloudDisks, volume_id: str) -> bool:
    volume = await cloud.find_volume(volume_id)
    return volume is None or not volume.attached_to


class CloudViewContract:
    @pytest.fixture
    async def world(self) -> AsyncIterator[CloudViewWorld]:
        raise NotImplementedError("an adapter's tests give the world")
        yield

    async def test_an_empty_cloud_has_nothing(self, world: CloudViewWorld) -> None:
        assert world.cloud.name in ("aws", "gcp", "local")
        assert await world.cloud.node_groups("") == []
        assert await world.cloud.volumes() == []
        assert await world.cloud.snapshots() == []

    async def test_all_volumes_with_an_owner_are_told_the_oldest_first(self, world: CloudViewWorld) -> None:
        hours = (5, 1, 3, 2, 4)
        made = {
            hour: await world.give_volume(tags=ours(), created_at=LONG_AGO + timedelta(hours=hour)) for hour in hours
        }
        await world.give_volume(tags={"disk-name": "nobodys"})
        told = await world.cloud.volumes()
        assert [volume.volume_id for volume in told] == [made[hour] for hour in sorted(hours)]
        assert [volume.created_at for volume in told] == [LONG_AGO + timedelta(hours=hour) for hour in sorted(hours)]

    async def test_volumes_of_one_moment_are_always_told_in_the_same_order(self, world: CloudViewWorld) -> None:
        made = [await world.give_volume(tags=ours()) for _ in range(6)]
        assert [volume.volume_id for volume in await world.cloud.volumes()] == sorted(made)

    async def test_a_volume_is_told_with_its_size_and_all_its_tags(self, world: CloudViewWorld) -> None:
        tags = {OWNER_TAG: "grace", "disk_name": "data", DISK_ID_TAG: str(uuid4()), "team": "compilers"}
        volume_id = await world.give_volume(tags=tags, size_gb=37)
        [volume] = await world.cloud.volumes()
        assert (volume.volume_id, volume.size_gb, volume.attached_to) == (volume_id, 37, ())
        assert tags.items() <= volume.tags.items()
        assert (volume.owner, volume.disk_name) == ("grace", "data")

    async def test_who_has_a_volume_is_told(self, world: CloudViewWorld) -> None:
        free, taken = [await world.give_volume(tags=ours()) for _ in range(2)]
        machine = await world.attach(taken)
        assert {volume.volume_id: volume.attached_to for volume in await world.cloud.volumes()} == {
            free: (),
            taken: (machine,),
        }

    async def test_a_volume_that_is_gone_is_not_told(self, world: CloudViewWorld) -> None:
        gone, there = [await world.give_volume(tags=ours()) for _ in range(2)]
        assert len(await world.cloud.volumes()) == 2
        await world.destroy_volume(gone)
        assert [volume.volume_id for volume in await world.cloud.volumes()] == [there]

    async def test_snapshots_with_an_owner_or_of_volumes_with_one_are_told_the_oldest_first(
        self, world: CloudViewWorld
    ) -> None:
        mine, gone = [await world.give_volume(tags=ours()) for _ in range(2)]
        nobodys = await world.give_volume(tags={"purpose": "build-cache"})
        hour = timedelta(hours=1)
        by_hand = await world.give_snapshot(mine, tags={}, created_at=LONG_AGO + 3 * hour)
        of_gone = await world.give_snapshot(gone, tags=ours(), created_at=LONG_AGO + hour)
        recorded = await world.give_snapshot(mine, tags=ours(), created_at=LONG_AGO + 2 * hour)
        await world.give_snapshot(nobodys, tags={"purpose": "build-cache"})
        await world.destroy_volume(gone)
        told = await world.cloud.snapshots()
        assert [(snapshot.snapshot_id, snapshot.volume_id) for snapshot in told] == [
            (of_gone, gone),
            (recorded, mine),
            (by_hand, mine),
        ]
        assert [snapshot.created_at for snapshot in told] == [LONG_AGO + count * hour for count in (1, 2, 3)]

    async def test_a_snapshot_is_told_with_its_state_its_size_and_all_its_tags(self, world: CloudViewWorld) -> None:
        volume_id = await world.give_volume(tags=ours(), size_gb=23)
        tags = ours("ada", "default", **{RECORDED_TAG: str(uuid4())})
        states = list(SnapshotState)
        made = {await world.give_snapshot(volume_id, tags=tags, state=state): state for state in states}
        told = await world.cloud.snapshots()
        assert {snapshot.snapshot_id: snapshot.state for snapshot in told} == made
        assert {snapshot.size_gb for snapshot in told} == {23}
        assert all(tags.items() <= snapshot.tags.items() for snapshot in told)

    async def test_times_are_aware(self, world: CloudViewWorld) -> None:
        volume_id = await world.give_volume(tags=ours())
        await world.give_snapshot(volume_id, tags=ours())
        [volume], [snapshot] = await world.cloud.volumes(), await world.cloud.snapshots()
        assert volume.created_at.utcoffset() is not None
        assert snapshot.created_at.utcoffset() is not None


class NodeGroupsContract:
    @pytest.fixture
    async def world(self) -> AsyncIterator[GroupsWorld]:
        raise NotImplementedError("an adapter's tests give the world")
        yield

    async def test_groups_are_told_by_prefix_in_the_order_of_their_names(self, world: GroupsWorld) -> None:
        for name in ("lab-gpu-nodes-t4", "lab-gpu-nodes-h100-b", "lab-gpu-nodes-h100-a", "other-gpu-nodes-h100"):
            await world.give_group(name, desired=1, in_service=1)
        names = [group.name for group in await world.cloud.node_groups("lab-gpu-nodes-")]
        assert names == ["lab-gpu-nodes-h100-a", "lab-gpu-nodes-h100-b", "lab-gpu-nodes-t4"]
        assert [group.name for group in await world.cloud.node_groups("gpu-nodes")] == []

    async def test_only_machines_in_service_count_as_running(self, world: GroupsWorld) -> None:
        await world.give_group("lab-gpu-nodes-h100", desired=4, in_service=2, starting=1)
        await world.give_group("lab-gpu-nodes-t4", desired=0, in_service=0)
        assert await world.cloud.node_groups("lab-") == [
            NodeGroup("lab-gpu-nodes-h100", desired=4, in_service=2),
            NodeGroup("lab-gpu-nodes-t4", desired=0, in_service=0),
        ]


class CloudDisksContract:
    @pytest.fixture
    async def world(self) -> AsyncIterator[CloudWorld]:
        raise NotImplementedError("an adapter's tests give the world")
        yield

    async def test_a_volume_that_was_made_is_found_and_listed_as_it_was_asked_for(self, world: CloudWorld) -> None:
        made = await world.new_volume(team="compilers")
        assert (made.size_gb, made.zone, made.attached_to) == (world.sizes[0], world.zone, ())
        assert (ours() | {"team": "compilers"}).items() <= made.tags.items()
        assert await world.cloud.find_volume(made.volume_id) == made
        assert await world.cloud.volumes() == [made]

    async def test_the_same_token_gives_the_same_volume_again(self, world: CloudWorld) -> None:
        token = str(uuid4())
        first, second = await world.new_volume(token), await world.new_volume(token)
        assert first.volume_id == second.volume_id
        assert len(await world.cloud.volumes()) == 1

    async def test_the_same_token_gives_the_same_volume_also_after_it_changed(self, world: CloudWorld) -> None:
        token = str(uuid4())
        first = await world.new_volume(token)
        await world.cloud.tag_volume(first.volume_id, {"disk-name": "renamed"})
        again = await world.new_volume(token)
        assert (again.volume_id, again.disk_name) == (first.volume_id, "renamed")

    async def test_another_token_gives_another_volume(self, world: CloudWorld) -> None:
        first, second = await world.new_volume(), await world.new_volume()
        assert first.volume_id != second.volume_id

    async def test_asking_many_times_at_once_makes_one_volume_and_one_snapshot(self, world: CloudWorld) -> None:
        token, snapshot_token = str(uuid4()), str(uuid4())
        made = await asyncio.gather(*(world.new_volume(token) for _ in range(5)))
        assert len({volume.volume_id for volume in made}) == 1
        taken = await asyncio.gather(
            *(world.cloud.ensure_snapshot(snapshot_token, made[0].volume_id, ours()) for _ in range(5))
        )
        assert len({snapshot.snapshot_id for snapshot in taken}) == 1
        assert (len(await world.cloud.volumes()), len(await world.cloud.snapshots())) == (1, 1)

    async def test_what_never_was_is_not_found(self, world: CloudWorld) -> None:
        volume = await world.new_volume()
        snapshot = await world.new_snapshot(volume.volume_id)
        await world.complete(snapshot.snapshot_id)
        await world.cloud.remove_snapshot(snapshot.snapshot_id)
        await world.cloud.remove_volume(volume.volume_id)
        assert await world.cloud.find_volume(volume.volume_id) is None
        assert await world.cloud.find_snapshot(snapshot.snapshot_id) is None

    async def test_removing_what_is_gone_is_fine(self, world: CloudWorld) -> None:
        keep, volume = await world.new_volume(), await world.new_volume()
        snapshot = await world.new_snapshot(volume.volume_id)
        await world.complete(snapshot.snapshot_id)
        for _ in range(3):
            await world.cloud.remove_snapshot(snapshot.snapshot_id)
            await world.cloud.remove_volume(volume.volume_id)
        assert [volume.volume_id for volume in await world.cloud.volumes()] == [keep.volume_id]
        assert await world.cloud.snapshots() == []

    async def test_a_volume_that_somebody_has_is_not_removed(self, world: CloudWorld) -> None:
        volume = await world.new_volume()
        await world.attach(volume.volume_id)
        with pytest.raises(ClusterError):
            await world.cloud.remove_volume(volume.volume_id)
        assert await world.cloud.find_volume(volume.volume_id) is not None

    async def test_a_volume_is_detached_when_nobody_has_it_or_it_is_gone(self, world: CloudWorld) -> None:
        volume = await world.new_volume()
        assert await is_detached(world.cloud, volume.volume_id)
        await world.attach(volume.volume_id)
        assert not await is_detached(world.cloud, volume.volume_id)
        await world.detach(volume.volume_id)
        assert await is_detached(world.cloud, volume.volume_id)
        await world.cloud.remove_volume(volume.volume_id)
        assert await is_detached(world.cloud, volume.volume_id)

    async def test_a_volume_grows_and_never_shrinks(self, world: CloudWorld) -> None:
        small, large = world.sizes
        volume = await world.new_volume()

        async def has_grown() -> bool:
            return (await world.cloud.grow_volume(volume.volume_id, large)).size_gb >= large

        await eventually_async(has_grown)
        for size in (large, small):
            assert (await world.cloud.grow_volume(volume.volume_id, size)).size_gb == large
        found = await world.cloud.find_volume(volume.volume_id)
        assert found is not None
        assert found.size_gb == large

    async def test_tagging_changes_what_it_names_and_keeps_the_rest(self, world: CloudWorld) -> None:
        volume = await world.new_volume(team="compilers")
        for _ in range(2):
            await world.cloud.tag_volume(volume.volume_id, {"disk-name": "renamed", "extra": "yes"})
        found = await world.cloud.find_volume(volume.volume_id)
        assert found is not None
        assert found.tags == {**volume.tags, "disk-name": "renamed", "extra": "yes"}

    async def test_a_snapshot_begins_is_complete_later_and_becomes_a_volume(self, world: CloudWorld) -> None:
        volume = await world.new_volume()
        begun = await world.new_snapshot(volume.volume_id)
        assert (begun.volume_id, begun.size_gb) == (volume.volume_id, world.sizes[0])
        assert begun.state is not SnapshotState.ERROR
        await world.complete(begun.snapshot_id)
        found = await world.cloud.find_snapshot(begun.snapshot_id)
        assert found is not None
        assert found.state is SnapshotState.COMPLETED
        assert found.tags == begun.tags
        assert (ours() | {RECORDED_TAG: begun.tags[RECORDED_TAG]}).items() <= found.tags.items()
        restored = await world.cloud.ensure_volume(
            str(uuid4()), size_gb=world.sizes[1], zone=world.zone, tags=ours(), from_snapshot=begun.snapshot_id
        )
        assert restored.size_gb == world.sizes[1]
        assert restored.volume_id != volume.volume_id

    async def test_the_same_token_gives_the_same_snapshot_again(self, world: CloudWorld) -> None:
        volume, token = await world.new_volume(), str(uuid4())
        first = await world.cloud.ensure_snapshot(token, volume.volume_id, ours())
        await world.complete(first.snapshot_id)
        second = await world.cloud.ensure_snapshot(token, volume.volume_id, ours())
        assert (second.snapshot_id, second.state) == (first.snapshot_id, SnapshotState.COMPLETED)
        other = await world.cloud.ensure_snapshot(str(uuid4()), volume.volume_id, ours())
        assert {snapshot.snapshot_id for snapshot in await world.cloud.snapshots()} == {
            first.snapshot_id,
            other.snapshot_id,
        }

    async def test_a_snapshot_outlives_its_volume(self, world: CloudWorld) -> None:
        volume = await world.new_volume()
        snapshot = await world.new_snapshot(volume.volume_id)
        await world.complete(snapshot.snapshot_id)
        await world.cloud.remove_volume(volume.volume_id)
        assert [told.snapshot_id for told in await world.cloud.snapshots()] == [snapshot.snapshot_id]

    async def test_what_is_asked_of_a_volume_that_is_gone_is_refused(self, world: CloudWorld) -> None:
        volume = await world.new_volume()
        await world.cloud.remove_volume(volume.volume_id)
        with pytest.raises(ClusterError):
            await world.cloud.tag_volume(volume.volume_id, {"disk-name": "renamed"})
        with pytest.raises(ClusterError):
            await world.cloud.grow_volume(volume.volume_id, world.sizes[1])
        with pytest.raises(ClusterError):
            await world.new_snapshot(volume.volume_id)
        assert await world.cloud.volumes() == []


class CloudFaultsContract:
    @pytest.fixture
    async def world(self) -> AsyncIterator[FaultyWorld]:
        raise NotImplementedError("an adapter's tests give the world")
        yield

    @pytest.mark.parametrize("listing", Listing)
    async def test_a_listing_has_all_pages_in_one_order(self, world: FaultyWorld, listing: Listing) -> None:
        made = await world.give_many(listing, 23)
        world.pages_of(5)
        assert await world.told(listing) == made

    @pytest.mark.parametrize("page", [1, 2, 5])
    @pytest.mark.parametrize("listing", Listing)
    async def test_a_listing_of_which_one_page_fails_is_not_told_at_all(
        self, world: FaultyWorld, listing: Listing, page: int
    ) -> None:
        await world.give_many(listing, 23)
        world.pages_of(5)
        world.break_page(listing, page)
        with pytest.raises(Unavailable):
            await world.told(listing)

    @pytest.mark.parametrize("listing", Listing)
    async def test_a_listing_of_which_one_page_is_cut_off_is_not_told_at_all(
        self, world: FaultyWorld, listing: Listing
    ) -> None:
        await world.give_many(listing, 23)
        world.pages_of(5)
        world.cut_page(listing, 3)
        with pytest.raises(Unavailable):
            await world.told(listing)

    @pytest.mark.parametrize("listing", Listing)
    async def test_an_answer_that_is_not_the_clouds_is_no_empty_listing(
        self, world: FaultyWorld, listing: Listing
    ) -> None:
        await world.give_many(listing, 2)
        world.answer_nonsense()
        with pytest.raises(Unavailable):
            await world.told(listing)

    async def test_nothing_is_taken_for_gone_when_the_answer_is_not_the_clouds(self, world: FaultyWorld) -> None:
        volume = await world.new_volume()
        snapshot = await world.new_snapshot(volume.volume_id)
        world.answer_nonsense()
        with pytest.raises(Unavailable):
            await world.cloud.find_volume(volume.volume_id)
        with pytest.raises(Unavailable):
            await world.cloud.find_snapshot(snapshot.snapshot_id)

    @pytest.mark.parametrize("listing", Listing)
    async def test_what_may_not_be_read_is_refused_by_the_actions_name(
        self, world: FaultyWorld, listing: Listing
    ) -> None:
        action = world.refuse(listing)
        with pytest.raises(ClusterError, match=action):
            await world.told(listing)

    @pytest.mark.parametrize("listing", Listing)
    async def test_a_cloud_that_does_not_answer_is_unavailable(self, world: FaultyWorld, listing: Listing) -> None:
        world.be_unreachable()
        with pytest.raises(Unavailable):
            await world.told(listing)

    async def test_a_request_that_was_turned_away_for_their_number_is_made_again(self, world: FaultyWorld) -> None:
        made = await world.give_many(Listing.VOLUMES, 3)
        world.throttle(1)
        assert await world.told(Listing.VOLUMES) == made
        world.throttle(1)
        volume = await world.new_volume()
        world.throttle(1)
        await world.new_snapshot(volume.volume_id)
        assert len(await world.cloud.volumes()) == 4
        assert len(await world.cloud.snapshots()) == 1

    async def test_one_thing_is_made_though_every_answer_was_lost(self, world: FaultyWorld) -> None:
        token, snapshot_token = str(uuid4()), str(uuid4())
        with world.answers_lost(), contextlib.suppress(Unavailable):
            await world.new_volume(token)
        volume = await world.new_volume(token)
        assert [told.volume_id for told in await world.cloud.volumes()] == [volume.volume_id]
        with world.answers_lost(), contextlib.suppress(Unavailable):
            await world.cloud.ensure_snapshot(snapshot_token, volume.volume_id, ours())
        snapshot = await world.cloud.ensure_snapshot(snapshot_token, volume.volume_id, ours())
        assert [told.snapshot_id for told in await world.cloud.snapshots()] == [snapshot.snapshot_id]

    async def test_nothing_is_made_when_the_request_never_arrived_and_one_thing_afterwards(
        self, world: FaultyWorld
    ) -> None:
        token, snapshot_token = str(uuid4()), str(uuid4())
        with world.requests_lost(), pytest.raises(Unavailable):
            await world.new_volume(token)
        assert await world.cloud.volumes() == []
        volume = await world.new_volume(token)
        with world.requests_lost(), pytest.raises(Unavailable):
            await world.cloud.ensure_snapshot(snapshot_token, volume.volume_id, ours())
        assert await world.cloud.snapshots() == []
        await world.cloud.ensure_snapshot(snapshot_token, volume.volume_id, ours())
        assert (len(await world.cloud.volumes()), len(await world.cloud.snapshots())) == (1, 1)

    async def test_a_removal_of_which_the_answer_was_lost_may_be_repeated(self, world: FaultyWorld) -> None:
        volume = await world.new_volume()
        with world.answers_lost(), contextlib.suppress(Unavailable):
            await world.cloud.remove_volume(volume.volume_id)
        await world.cloud.remove_volume(volume.volume_id)
        assert await world.cloud.find_volume(volume.volume_id) is None

    async def test_what_was_just_made_is_not_taken_for_gone_while_it_cannot_be_seen(self, world: FaultyWorld) -> None:
        world.hide_the_new(2)
        volume = await world.new_volume()
        found = await world.cloud.find_volume(volume.volume_id)
        assert found is not None
        assert found.volume_id == volume.volume_id

    async def test_asking_again_before_it_can_be_seen_makes_no_second_one(self, world: FaultyWorld) -> None:
        token, snapshot_token = str(uuid4()), str(uuid4())
        world.hide_the_new(3)
        volumes = [await world.new_volume(token) for _ in range(3)]
        assert len({volume.volume_id for volume in volumes}) == 1
        volume_id = volumes[0].volume_id
        snapshots = [await world.cloud.ensure_snapshot(snapshot_token, volume_id, ours()) for _ in range(3)]
        assert len({snapshot.snapshot_id for snapshot in snapshots}) == 1
