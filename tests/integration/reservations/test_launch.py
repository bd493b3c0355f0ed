"""A launch that breaks off half-way is brought to its end, however far the dev server is by then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterState, ServerSpec
from gpudev.processor import planning_loop
from gpudev.processor.planning_loop import Processor
from gpudev.settings import Settings
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.processor_world import World


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
    await world.processor.run_cycle()
    await world.processor.effects.wait_idle()
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
        self.begun = asyncio.Event()
        self.looked = asyncio.Event()

    async def observe(self) -> ClusterState:
        self.looked.set()
        return await super().observe()

    async def ensure_server(self, spec: ServerSpec) -> None:
        self.begun.set()
        await self.go_on.wait()
        await super().ensure_server(spec)


@contextlib.asynccontextmanager
async def _launching(
    world: World, stores: Stores, clock: ManualClock, settings: Settings
) -> AsyncIterator[tuple[SlowCluster, Processor]]:
    """A processor that runs by itself, in the middle of a launch."""
    cluster = SlowCluster(clock)
    processor = make_processor(stores, cluster, clock, settings.timing)
    await world.submit(8)
    running = asyncio.create_task(processor.run())
    try:
        async with asyncio.timeout(30):
            await cluster.begun.wait()
        yield cluster, processor
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _until_looked_again(cluster: SlowCluster) -> None:
    async with asyncio.timeout(30):
        await cluster.looked.wait()


async def test_those_who_start_come_before_the_next_turn(
    world: World, stores: Stores, clock: ManualClock, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_loop, "_LET_LAUNCH_S", 3600)
    async with _launching(world, stores, clock, settings) as (cluster, _):
        cluster.looked.clear()
        await asyncio.sleep(0.1)  # of turns that nobody waits for
        assert not cluster.looked.is_set()
        cluster.go_on.set()
        await _until_looked_again(cluster)
        assert cluster.launches == 1


async def test_a_launch_that_takes_long_holds_nobody_up(
    world: World, stores: Stores, clock: ManualClock, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_loop, "_LET_LAUNCH_S", 0.01)
    async with _launching(world, stores, clock, settings) as (cluster, _):
        cluster.looked.clear()
        await _until_looked_again(cluster)
        assert cluster.launches == 0


async def test_whatever_happens_meanwhile_is_looked_at(
    world: World, stores: Stores, clock: ManualClock, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_loop, "_LET_LAUNCH_S", 3600)
    async with _launching(world, stores, clock, settings) as (cluster, processor):
        cluster.looked.clear()
        processor.wake()
        await _until_looked_again(cluster)
        assert cluster.launches == 0


async def test_a_start_that_could_not_be_written_waits_for_the_sweep(
    world: World, stores: Stores, clock: ManualClock, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a row that the database refuses would have the loop turn without end."""
    cluster = SlowCluster(clock)
    processor = make_processor(stores, cluster, clock, settings.timing)
    await world.submit(8)

    async def refused(*_: object) -> frozenset[ReservationId]:
        return frozenset()

    monkeypatch.setattr(processor, "_write", refused)
    await processor.acquire_lease()
    processor._woken.clear()
    await processor.run_cycle()
    await asyncio.sleep(0.15)  # three times as long as those who start are let go first
    assert not processor._woken.is_set()
