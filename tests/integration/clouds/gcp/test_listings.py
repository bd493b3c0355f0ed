"""GCP's listings are whole or not told, in GCP's own ways of saying that something is missing."""

import pytest

from contracts.cloud_worlds import LONG_AGO, Listing, ours
from gpudev.adapters.gcp.cloud import GcpCloud
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import NodeGroup
from support.clouds.gcp_stub import Cut, Fault, Gap, GcpStub, Nonsense, Refuse
from support.clouds.gcp_world import StubWorld, cloud_for

pytestmark = pytest.mark.slow  # importing Google's client takes seconds


@pytest.fixture
def world(stub: GcpStub, cloud: GcpCloud) -> StubWorld:
    return StubWorld(stub, cloud)


@pytest.mark.parametrize("gap", Gap)
@pytest.mark.parametrize("listing", Listing)
async def test_a_listing_without_a_zone_that_could_not_be_asked_is_not_told(
    world: StubWorld, listing: Listing, gap: Gap
) -> None:
    await world.give_many(listing, 6)
    world.stub.listings.gaps["us-central1-a"] = gap
    with pytest.raises(Unavailable):
        await world.told(listing)


@pytest.mark.parametrize("gap", [Gap.IN_ITS_SCOPE, Gap.AMONG_UNREACHABLES])
async def test_a_gap_in_another_region_is_none_of_ours(world: StubWorld, gap: Gap) -> None:
    cloud = cloud_for(world.stub, region="us-central1")
    await cloud.start()
    made = await world.give_many(Listing.VOLUMES, 6)
    world.stub.listings.gaps["europe-west4-a"] = gap
    assert [volume.volume_id for volume in await cloud.volumes()] == [
        volume_id for volume_id in made if "/us-central1-" in volume_id
    ]
    assert (await cloud.ensure_volume("5" * 32, size_gb=10, zone="us-central1-a", tags=ours())).zone == "us-central1-a"
    await cloud.close()


async def test_only_our_regions_groups_disks_and_snapshots_are_told(world: StubWorld) -> None:
    cloud = cloud_for(world.stub, region="us-central1")
    await cloud.start()
    project = world.stub.project
    for scope in ("zones/us-central1-a", "regions/us-central1", "zones/us-central12-a", "regions/europe-west4"):
        project.put_group(scope, f"group-{scope.replace('/', '-')}", target=1, actions={"none": 1})
    for zone in ("us-central1-a", "europe-west4-a"):
        disk = project.put_disk(zone, "disk", size_gb=10, labels=ours(), created_at=LONG_AGO)
        await world.give_snapshot(disk, tags=ours())
    groups, volumes, snapshots = await cloud.node_groups(""), await cloud.volumes(), await cloud.snapshots()
    assert [group.name for group in groups] == ["group-regions-us-central1", "group-zones-us-central1-a"]
    assert [volume.zone for volume in volumes] == ["us-central1-a"]
    assert [snapshot.volume_id for snapshot in snapshots] == [volumes[0].volume_id]
    await cloud.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"items": {}}',
        b'{"kind": "compute#diskList", "items": []}',
        b'{"kind": "compute#diskAggregatedList", "items": []}',
        b"\xff\xfe",
    ],
)
async def test_json_that_is_no_listing_is_no_empty_listing(world: StubWorld, body: bytes) -> None:
    world.stub.faults.append(Fault(Nonsense(body, "application/json")))
    with pytest.raises(Unavailable):
        await world.cloud.volumes()


async def test_a_page_that_ends_early_without_a_declared_length_is_not_told(world: StubWorld) -> None:
    await world.give_many(Listing.VOLUMES, 3)
    world.stub.faults.append(Fault(Cut(declared=False)))
    with pytest.raises(Unavailable):
        await world.cloud.volumes()


async def test_a_page_token_that_gcp_no_longer_knows_breaks_the_listing_off(world: StubWorld) -> None:
    await world.give_many(Listing.VOLUMES, 6)
    world.pages_of(2)
    world.stub.faults.append(Fault(Refuse(400, "invalid", "Invalid page token"), lambda request: request.page == 2))
    with pytest.raises(Unavailable):
        await world.cloud.volumes()


async def test_a_project_that_is_not_there_is_not_an_empty_one(world: StubWorld) -> None:
    volume = await world.new_volume()
    world.stub.project.name = "another"
    with pytest.raises(Unavailable):
        await world.cloud.volumes()
    with pytest.raises(ClusterError):
        await world.cloud.find_volume(volume.volume_id)


async def test_groups_of_one_name_in_several_zones_are_all_told(world: StubWorld) -> None:
    for count, zone in enumerate(("us-central1-a", "us-central1-b"), start=1):
        world.stub.project.put_group(f"zones/{zone}", "lab-gpu-nodes-h100", target=2, actions={"none": count})
    assert await world.cloud.node_groups("lab-") == [
        NodeGroup("lab-gpu-nodes-h100", desired=2, in_service=1),
        NodeGroup("lab-gpu-nodes-h100", desired=2, in_service=2),
    ]


async def test_a_group_costs_no_request_of_its_own(world: StubWorld) -> None:
    await world.give_many(Listing.GROUPS, 20)
    assert len(await world.cloud.node_groups("")) == 20
    assert len(world.stub.called) == 1


async def test_a_regional_disk_is_seen_and_left_alone(world: StubWorld) -> None:
    path = world.stub.project.put_disk("x", "wide", size_gb=10, labels=ours(), created_at=LONG_AGO)
    disk = world.stub.project.disks.pop(path)
    path = "projects/lab-1/regions/us-central1/disks/wide"
    world.stub.project.disks[path] = disk | {"selfLink": f"https://www.googleapis.com/compute/v1/{path}"}
    assert [(volume.volume_id, volume.zone) for volume in await world.cloud.volumes()] == [(path, None)]
    before = len(world.stub.called)
    for refused in (world.cloud.find_volume(path), world.cloud.remove_volume(path), world.cloud.find_volume("vol-1")):
        with pytest.raises(ClusterError):
            await refused
    assert len(world.stub.called) == before


async def test_a_later_disk_of_the_same_name_has_none_of_the_earlier_ones_snapshots(world: StubWorld) -> None:
    path = await world.give_volume(tags=ours())
    by_hand = await world.give_snapshot(path, tags={})
    assert [snapshot.snapshot_id for snapshot in await world.cloud.snapshots()] == [by_hand]
    disk = world.stub.project.disks[path]
    world.stub.project.put_disk("us-central1-a", disk["name"], size_gb=10, labels=ours(), created_at=LONG_AGO)
    assert [volume.volume_id for volume in await world.cloud.volumes()] == [path]
    assert await world.cloud.snapshots() == []
