from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from gpudev.adapters.postgres.database.roles import RECONCILER
from gpudev.adapters.postgres.disks.records import PostgresDiskRecords
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.settings import Settings
from gpudev.workflows.disks.reconcile_disks import DiskReconciliation
from support.clock import ManualClock
from support.paper_cloud import PaperCloud
from support.paper_cluster import PaperCluster
from support.world import World


@pytest.fixture
def cloud() -> PaperCloud:
    return PaperCloud()


@pytest.fixture
async def world(
    stores: Stores, stores_of: Callable[[str], Stores], clock: ManualClock, settings: Settings
) -> AsyncIterator[World]:
    cluster = PaperCluster([Node("node-1", "h100", 8)], clock)
    theirs = stores_of(RECONCILER)
    # It also starts dev servers here, as only a processor does: what people bring to them is read with its rights.
    processor = make_processor(
        replace(theirs, personalizations=stores.personalizations), cluster, clock, settings.timing
    )
    yield World(replace(stores, leases=theirs.leases), cluster, clock, processor, settings)
    await processor.effects.cancel()


@pytest.fixture
def records(stores: Stores) -> PostgresDiskRecords:
    return PostgresDiskRecords(stores.pool)


@pytest.fixture
def reconciling(cloud: PaperCloud, records: PostgresDiskRecords, clock: ManualClock) -> DiskReconciliation:
    return DiskReconciliation(cloud, records, clock, by="test")
