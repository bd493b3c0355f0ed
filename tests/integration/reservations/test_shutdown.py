"""Asked to stop, it stops: also when it is woken in the same moment."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.adapters.postgres.database.roles import PROCESSOR
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.processor.planning_loop import Processor
from gpudev.settings import Settings
from support.clock import ManualClock
from support.disks.disk_processor import DiskStays
from support.paper_cluster import PaperCluster

MOMENTS = range(4)
"""Turns of the event loop between waking and stopping: in one of them whoever waits has been woken, and has not gone on
yet."""


@pytest.fixture
def processor(stores_of: Callable[[str], Stores], clock: ManualClock, settings: Settings) -> Processor:
    timing = replace(settings.timing, sweep_every=timedelta(minutes=10))
    return make_processor(stores_of(PROCESSOR), PaperCluster([Node("node-1", "h100", 8)], clock), clock, timing)


async def stops(task: "asyncio.Task[None]", wake: Callable[[], None], moments: int) -> bool:
    await asyncio.sleep(0.5)  # by now it waits
    wake()
    for _ in range(moments):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=10)
    if not done:
        task.cancel()
        await asyncio.wait({task})
    return bool(done)


@pytest.mark.parametrize("moments", MOMENTS)
async def test_a_processor_that_is_woken_while_it_is_stopped(processor: Processor, moments: int) -> None:
    assert await stops(asyncio.create_task(processor.run()), processor.wake, moments)


@pytest.mark.parametrize("moments", MOMENTS)
async def test_what_looks_after_the_inside_and_is_woken_while_it_is_stopped(processor: Processor, moments: int) -> None:
    inside = processor.addons
    task = asyncio.create_task(inside.run(lambda: False, LoopWatchdog(timedelta(seconds=120))))
    assert await stops(task, inside.wake, moments)


@pytest.mark.parametrize("moments", MOMENTS)
async def test_what_looks_after_disks_and_is_woken_while_it_is_stopped(stays: DiskStays, moments: int) -> None:
    disks = stays.work
    task = asyncio.create_task(disks.run(lambda: False, LoopWatchdog(timedelta(seconds=120))))
    assert await stops(task, lambda: disks.on_notification(None), moments)
