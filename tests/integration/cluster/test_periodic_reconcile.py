"""What a processor does now and then beside planning."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap import reconcilers
from gpudev.bootstrap.reconcilers import PeriodicReconciler, run_periodic_reconcilers
from gpudev.domain.errors import Unavailable
from gpudev.ports.cloud import NodeGroup
from gpudev.ports.leases import ReconcilePass
from gpudev.processor.cluster_publisher import NodeGroupsState
from gpudev.settings import Settings
from support.paper_cloud import PaperCloud
from support.polling import eventually_async
from support.processor_world import World


def keeper(stores: Stores, cloud: PaperCloud, groups: NodeGroupsState, settings: Settings) -> PeriodicReconciler:
    return PeriodicReconciler(settings, stores, cloud, groups)


async def test_the_groups_of_nodes_are_kept_for_whoever_publishes_and_stay_when_the_cloud_is_away(
    stores: Stores, cloud: PaperCloud, settings: Settings
) -> None:
    groups = NodeGroupsState(has_cloud=True)
    cloud.groups = [NodeGroup("pytorch-gpu-dev-gpu-nodes-h100-1", 3, 2)]
    kept = keeper(stores, cloud, groups, settings)
    await kept.refresh_node_groups()
    assert groups.groups is not None
    assert (groups.groups.running("h100"), groups.groups.desired("h100")) == (2, 3)
    cloud.refuse_groups = Unavailable("throttled")
    with pytest.raises(Unavailable):
        await kept.refresh_node_groups()
    assert groups.groups.running("h100") == 2


async def test_disks_are_compared_unless_somebody_else_is_at_it(
    stores: Stores, cloud: PaperCloud, settings: Settings
) -> None:
    cloud.volume("vol-1")
    kept = keeper(stores, cloud, NodeGroupsState(), settings)
    async with stores.reconcile_locks.hold(ReconcilePass.DISKS, wait=True):
        await kept.reconcile_disks()
        assert cloud.asked == []
    await kept.reconcile_disks()
    assert [record.volume_id for record in await stores.disk_records.list_records()] == ["vol-1"]


async def test_only_the_processor_that_plans_reconciles_and_failures_end_nothing(
    reconciler_world: World, cloud: PaperCloud, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly = timedelta(milliseconds=10)
    chosen = replace(settings, cloud="aws")
    monkeypatch.setattr(reconcilers, "_NODE_GROUPS_EVERY", quickly)
    monkeypatch.setattr(reconcilers, "_DISKS_EVERY", quickly)
    opened = asyncio.Event()

    class Opening:
        """Fails the first time."""

        def __init__(self, _settings: Any) -> None: ...

        async def __aenter__(self) -> PaperCloud:
            if not opened.is_set():
                opened.set()
                raise Unavailable("no credentials yet")
            return cloud

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(reconcilers, "open_cloud", Opening)
    monkeypatch.setattr(reconcilers, "_REOPEN_CLOUD_AFTER", quickly)
    cloud.volume("vol-1")
    cloud.refuse_volumes = Unavailable("throttled")
    task = asyncio.create_task(
        run_periodic_reconcilers(chosen, reconciler_world.stores, NodeGroupsState(), reconciler_world.processor)
    )
    try:
        await asyncio.wait_for(opened.wait(), 30)
        await asyncio.sleep(0.2)  # nothing happens, and nothing tells when it would have
        assert cloud.asked == [], "nobody plans yet"
        await reconciler_world.processor.acquire_lease()
        await eventually_async(lambda: cloud.asked.count("volumes") >= 2)
        cloud.refuse_volumes = None
        await eventually_async(reconciler_world.stores.disk_records.list_records)
        assert "groups" in cloud.asked
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
