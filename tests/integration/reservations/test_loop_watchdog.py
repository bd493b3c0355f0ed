"""Alive means that the loops turn over: a fault that is tried again is no reason to begin anew, a hang is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.adapters.postgres.database.roles import PROCESSOR
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.errors import Unavailable
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.ports.cluster import ClusterState
from gpudev.processor.planning_loop import Processor
from gpudev.settings import Settings
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.polling import eventually_async


class Moments:
    def __init__(self) -> None:
        self.now = 0.0


class HangingCluster(PaperCluster):
    hangs = False
    looks = 0

    async def observe(self) -> ClusterState:
        self.looks += 1
        if self.hangs:
            await asyncio.Event().wait()
        return await super().observe()


@pytest.fixture
def cluster(clock: ManualClock) -> HangingCluster:
    return HangingCluster([Node("node-1", "h100", 8)], clock)


@pytest.fixture
async def running(
    stores_of: Callable[[str], Stores], cluster: HangingCluster, clock: ManualClock, settings: Settings
) -> AsyncIterator[tuple[Processor, Moments]]:
    """A processor that runs, with a pulse whose time is moved by hand."""
    moments, second = Moments(), timedelta(seconds=1)
    timing = replace(settings.timing, lease_ttl=second, sweep_every=second / 20)
    processor = make_processor(stores_of(PROCESSOR), cluster, clock, timing)
    processor.watchdog = LoopWatchdog(timedelta(seconds=120), lambda: moments.now)
    task = asyncio.create_task(processor.run())
    try:
        await eventually_async(lambda: cluster.looks > 0)
        yield processor, moments
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_turn_that_hangs_is_seen_while_other_loops_go_on(
    running: tuple[Processor, Moments], cluster: HangingCluster
) -> None:
    processor, moments = running
    cluster.hangs = True
    seen = cluster.looks
    await eventually_async(lambda: cluster.looks > seen)
    moments.now = 121.0
    processor.wake()
    await eventually_async(lambda: set(processor.watchdog.stuck_loops()) == {"planning"})


async def test_interiors_that_nobody_makes_true_any_more_are_seen(
    running: tuple[Processor, Moments], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor, moments = running
    hanging = asyncio.Event()

    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(processor.addons, "begin_due", hang)
    processor.wake()
    await asyncio.wait_for(hanging.wait(), 30)
    moments.now = 121.0
    await eventually_async(lambda: set(processor.watchdog.stuck_loops()) == {"interiors"})


async def test_a_cluster_that_is_away_is_no_reason_to_begin_anew(
    running: tuple[Processor, Moments], cluster: HangingCluster
) -> None:
    processor, moments = running
    cluster.refuse_look = Unavailable("it is away")
    moments.now = 121.0
    seen = cluster.looks
    processor.wake()
    await eventually_async(lambda: cluster.looks > seen + 2 and not processor.watchdog.stuck_loops())
