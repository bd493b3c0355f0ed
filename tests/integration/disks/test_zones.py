"""Disks in zones: a reservation starts where its disk is, says so while it waits, and goes elsewhere with its disk
where that is faster."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from gpudev.adapters.postgres.disks.views import PostgresDiskLocations
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_disk_reconciler, make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.errors import Conflict
from gpudev.domain.ids import DiskId, ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cluster import HomeVolume
from gpudev.ports.disks import DiskLocation
from gpudev.settings import Settings
from gpudev.wire.reservations import SubmitRequest
from gpudev.workflows.reservations.reservation_actions import Extension
from gpudev.workflows.reservations.submission import Submission
from support.clock import ManualClock
from support.disks.memory_cloud import MemoryCloud
from support.paper_cluster import PaperCluster
from support.processor_world import World

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJz3kp1hWd7FSGP8wVPhlm5BkZdS0Dkt3Xv1H6Eo4bYs ada@home"
NODES = (Node("first", "h100", 8, zone="zone-b"), Node("second", "h100", 8, zone="zone-a"))
"""By name alone everybody would begin on the first, in zone-b."""


class ZoneWorld(World):
    cloud: MemoryCloud

    async def go_on(self) -> None:
        await self.turn(4)

    async def stay(self, reservation_id: ReservationId) -> HomeVolume | None:
        """It runs; on which volume?"""
        assert await self.status(reservation_id) is Status.ACTIVE
        return self.cluster.specs[reservation_id].volume

    async def node(self, reservation_id: ReservationId) -> str:
        return (await self.get(reservation_id)).shares[0].node


@pytest.fixture
async def zones(stores: Stores, clock: ManualClock, settings: Settings) -> AsyncIterator[ZoneWorld]:
    cloud = MemoryCloud(clock)
    cloud.takes_time = False
    cluster = PaperCluster(list(NODES), clock)
    work = make_disk_reconciler(stores, cloud, clock, DiskSettings(default_size_gb=10))
    processor = make_processor(stores, cluster, clock, settings.timing, disks=work)
    world = ZoneWorld(stores, cluster, clock, processor, settings)
    world.cloud = cloud
    yield world
    await processor.effects.cancel()
    await work.close()


async def used_once_in_zone_a(zones: ZoneWorld) -> None:
    """Disk 'data' has a volume in zone-a, and what is on it is in a snapshot."""
    other = await zones.submit(8, user="eve")  # has zone-b meanwhile
    await zones.go_on()
    mine = await zones.submit(8, disk="data")
    await zones.go_on()
    volume = await zones.stay(mine)
    assert volume is not None
    assert volume.zone == "zone-a", "made where it was first used"
    for rid in (mine, other):
        await zones.cancel(rid)
    await zones.go_on()
    assert (await zones.get(mine)).is_released


async def test_a_disk_is_used_where_it_is(zones: ZoneWorld) -> None:
    await used_once_in_zone_a(zones)
    without, with_disk = await zones.submit(2, user="bob"), await zones.submit(2, disk="data")
    await zones.go_on()
    assert await zones.node(without) == "first"
    assert await zones.node(with_disk) == "second"
    volume = await zones.stay(with_disk)
    assert volume is not None
    assert volume.zone == "zone-a"


async def test_who_waits_for_a_zone_is_told_so(zones: ZoneWorld) -> None:
    await used_once_in_zone_a(zones)
    for volume in zones.cloud.volumes_there.values():
        assert not volume.attached_to
    async with zones.stores.pool.transaction() as connection:  # as if its snapshot were still being taken
        await connection.execute("UPDATE disk_snapshots SET status = 'pending'")
    there = await zones.submit(8, user="eve", hours=4)
    also_there = await zones.submit(8, user="bob", hours=3)
    await zones.go_on()
    assert {await zones.node(there), await zones.node(also_there)} == {"first", "second"}
    in_zone_a = there if await zones.node(there) == "second" else also_there
    waits = await zones.submit(2, disk="data")
    await zones.cancel(also_there if in_zone_a == there else there)  # zone-b becomes free
    await zones.go_on()
    row = await zones.get(waits)
    assert row.status is Status.QUEUED
    assert row.estimate is not None
    assert row.estimate.reason.startswith("waits for zone zone-a, where disk 'data' is; 0 of 2 GPUs free")
    await zones.cancel(in_zone_a)
    await zones.go_on()
    assert await zones.node(waits) == "second"


async def test_a_disk_goes_along_where_that_is_faster_than_waiting(zones: ZoneWorld) -> None:
    await used_once_in_zone_a(zones)
    rows = [await zones.submit(8, user=name, hours=4) for name in ("eve", "bob")]
    await zones.go_on()
    by_node = {await zones.node(rid): rid for rid in rows}
    await zones.cancel(by_node["first"])
    await zones.go_on()
    mine = await zones.submit(2, disk="data")
    await zones.go_on()
    assert await zones.node(mine) == "first"
    volume = await zones.stay(mine)
    assert volume is not None
    assert volume.zone == "zone-b"
    assert volume.volume_id in zones.cloud.volumes_there


async def test_nobody_stays_longer_where_somebody_waits_for_that_very_zone(zones: ZoneWorld) -> None:
    await used_once_in_zone_a(zones)
    async with zones.stores.pool.transaction() as connection:  # it cannot move
        await connection.execute("UPDATE disk_snapshots SET status = 'pending'")
    both = [await zones.submit(8, user=name, hours=4) for name in ("eve", "bob")]
    await zones.go_on()
    by_node = {await zones.node(rid): rid for rid in both}
    waits = await zones.submit(8, disk="data", hours=1)
    await zones.go_on()
    extending = Extension(
        zones.stores.reservations,
        zones.stores.unreleased,
        zones.stores.nodes,
        zones.stores.plans,
        zones.clock,
        zones.settings.limits,
        zones.settings.timing,
    )
    names = {both[0]: "eve", both[1]: "bob"}
    elsewhere, there = by_node["first"], by_node["second"]
    users = {rid: await zones.stores.users.find_user(name) for rid, name in names.items()}
    mine, theirs = users[elsewhere], users[there]
    assert mine is not None
    assert theirs is not None
    await extending.extend(mine, str(elsewhere), 2)
    with pytest.raises(Conflict, match=f"reservation {str(waits)[:8]} waits"):
        await extending.extend(theirs, str(there), 2)


async def test_the_first_answer_knows_where_the_disk_is(zones: ZoneWorld) -> None:
    await used_once_in_zone_a(zones)
    async with zones.stores.pool.transaction() as connection:
        await connection.execute("UPDATE disk_snapshots SET status = 'pending'")
    both = [await zones.submit(8, user=name, hours=4) for name in ("eve", "bob")]
    await zones.go_on()
    by_node = {await zones.node(rid): rid for rid in both}
    await zones.cancel(by_node["first"])
    await zones.go_on()
    submission = Submission(
        reservations=zones.stores.reservations,
        unreleased=zones.stores.unreleased,
        nodes=zones.stores.nodes.nodes,
        catalogue=zones.stores.catalogue.catalogue,
        keys=NoKeys(),
        clock=zones.clock,
        limits=zones.settings.limits,
        plans=zones.stores.plans,
        timing=zones.settings.timing,
        fixed_cluster=False,
        disk_limits=DiskSettings(),
        disk_locations=zones.stores.disk_locations,
    )
    ada = await zones.stores.users.find_user("ada")
    assert ada is not None
    told = {}
    for disk in ("none", "data"):
        asked: dict[str, Any] = {"gpu_type": "h100", "gpu_count": 8, "ssh_public_keys": [PUBLIC_KEY]}
        request = SubmitRequest(**asked, disk_name=disk)
        told[disk] = (await submission.submit(ada, request, None)).reservation
    reasons = {disk: row.estimate.reason for disk, row in told.items() if row.estimate is not None}
    assert reasons["none"] == "it is about to start"
    assert reasons["data"].startswith("waits for zone zone-a, where disk 'data' is")


class NoKeys:
    async def public_keys(self, github_user: str) -> list[str]:
        raise AssertionError("nobody asks for keys")


class CountingPlaces(PostgresDiskLocations):
    asked = 0

    async def find_locations(self, disk_ids: Sequence[DiskId]) -> Mapping[DiskId, DiskLocation]:
        self.asked += 1
        return await super().find_locations(disk_ids)


@pytest.mark.parametrize(
    ("nodes", "disk", "is_asked"),
    [(NODES, "none", False), ((Node("plain", "h100", 8),), "data", False), (NODES, "data", True)],
    ids=["no disk", "no zones", "both"],
)
async def test_who_has_no_disk_or_no_zones_pays_nothing(
    zones: ZoneWorld, nodes: Sequence[Node], disk: str, is_asked: bool
) -> None:
    zones.cluster.nodes = tuple(nodes)
    anchoring = zones.processor._queue_planner._disk_zones
    assert anchoring is not None
    counting = anchoring._locations = CountingPlaces(zones.stores.pool)
    await zones.submit(2, disk=disk)
    await zones.go_on()
    assert bool(counting.asked) is is_asked
