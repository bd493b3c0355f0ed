from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from gpudev.adapters.postgres.database.roles import PROCESSOR
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.settings import Settings
from processor.disk_stays import DiskStays
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.world import World


@pytest.fixture
async def world(
    stores: Stores, stores_of: Callable[[str], Stores], clock: ManualClock, settings: Settings
) -> AsyncIterator[World]:
    cluster = PaperCluster([Node("node-1", "h100", 8)], clock)
    theirs = stores_of(PROCESSOR)
    processor = make_processor(theirs, cluster, clock, settings.timing)
    processor._queue_planner._publisher._seconds = lambda: (
        0.0
    )  # publishing is never too dear, however slow the machine is
    yield World(replace(stores, leases=theirs.leases), cluster, clock, processor, settings)
    await processor.effects.cancel()


@pytest.fixture
async def stays(stores: Stores, clock: ManualClock, settings: Settings) -> AsyncIterator[DiskStays]:
    world = DiskStays.begin(stores, clock, settings)
    yield world
    await world.close()
