"""A launch that breaks off half-way is brought to its end, however far the dev server is by then."""

import asyncio

import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.capacity import Node
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.lifecycle import Status
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import Settings
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.world import World


class CutCluster(PaperCluster):
    """A launch makes a server and a rule for it; the line may be cut in between."""

    def __init__(self, clock: Clock) -> None:
        super().__init__([Node("node-1", "h100", 8)], clock)
        self.rules: set[ReservationId] = set()
        self.is_cut = False

    async def ensure_server(self, spec: ServerSpec) -> None:
        await super().ensure_server(spec)
        if self.is_cut:
            raise Unavailable("the line was cut")
        self.rules.add(spec.reservation_id)


@pytest.fixture
def cut(world: World, stores: Stores, clock: ManualClock, settings: Settings) -> CutCluster:
    cluster = CutCluster(clock)
    world.cluster = cluster
    world.processor = make_processor(stores, cluster, clock, settings.timing)
    return cluster


@pytest.mark.parametrize("ready_at_once", [True, False])
async def test_what_is_missing_after_a_cut_line_is_made_when_it_is_back(
    world: World, cut: CutCluster, ready_at_once: bool
) -> None:
    cut.ready_at_once, cut.is_cut = ready_at_once, True
    rid = await world.submit(8)
    await world.turn()
    cut.is_cut = False
    await world.turn()
    assert cut.rules == set(), "not before the next attempt is due"
    world.clock.move(seconds=5)
    await world.turn()
    assert cut.rules == {rid}
    assert await world.status(rid) is (Status.ACTIVE if ready_at_once else Status.PREPARING)
    assert cut.launches == 1, "what was there stays"
    asked = cut.asked
    world.clock.move(seconds=5)
    await world.turn()
    assert cut.asked == asked, "once is enough"


@pytest.mark.parametrize("ready_at_once", [True, False])
async def test_what_a_processor_that_was_killed_had_begun_is_completed_by_the_next(
    world: World, cut: CutCluster, ready_at_once: bool, stores: Stores, settings: Settings
) -> None:
    cut.ready_at_once, cut.is_cut = ready_at_once, True
    rid = await world.submit(8)
    await world.processor.acquire_lease()
    await world.processor.turn()
    await world.processor.effects.settle()
    assert await world.status(rid) is Status.PREPARING
    cut.is_cut = False
    world.clock.move(seconds=5)
    assert world.processor._lease is not None
    await stores.leases.release(world.processor._lease)
    world.processor = make_processor(stores, cut, world.clock, settings.timing)
    await world.turn()
    assert cut.rules == {rid}
    assert cut.launches == 1


async def test_one_that_fails_is_not_launched_once_more(world: World, cut: CutCluster) -> None:
    cut.is_cut = True
    rid = await world.submit(8)
    await world.turn(1)
    cut.kill(rid)
    cut.is_cut = False
    world.clock.move(seconds=5)
    await world.turn()
    assert await world.status(rid) is Status.FAILED
    assert cut.rules == set()


class SlowCluster(PaperCluster):
    """Making a dev server takes until somebody says so."""

    def __init__(self, clock: Clock) -> None:
        super().__init__([Node("node-1", "h100", 8)], clock)
        self.go_on = asyncio.Event()

    async def ensure_server(self, spec: ServerSpec) -> None:
        await self.go_on.wait()
        await super().ensure_server(spec)


async def test_the_loop_lets_those_who_start_come_first_but_not_for_long(
    world: World, stores: Stores, clock: ManualClock, settings: Settings
) -> None:
    cluster = SlowCluster(clock)
    processor = make_processor(stores, cluster, clock, settings.timing)
    await world.submit(8)
    await processor.acquire_lease()
    await processor.turn()
    waiting = asyncio.create_task(processor.effects.launched(within=3600))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done, "it is being made"
    cluster.go_on.set()
    await asyncio.wait_for(waiting, 30)
    assert cluster.launches == 1

    cluster.go_on.clear()
    await processor.effects.launched(within=3600)  # of the same launch nobody hears twice
    await processor.effects.cancel()


async def test_a_launch_that_takes_long_holds_nobody_up(
    world: World, stores: Stores, clock: ManualClock, settings: Settings
) -> None:
    cluster = SlowCluster(clock)
    processor = make_processor(stores, cluster, clock, settings.timing)
    await world.submit(8)
    await processor.acquire_lease()
    await processor.turn()
    await asyncio.wait_for(processor.effects.launched(within=0.01), 30)
    assert cluster.launches == 0
    await processor.effects.cancel()
