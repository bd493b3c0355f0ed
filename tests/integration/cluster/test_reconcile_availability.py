"""Phase 1 on a real database: what is written, what stays, and what people are told."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpudev.adapters.postgres.queue.estimates import PostgresQueuePlans
from gpudev.adapters.postgres.reservations.reservation_store import UnreleasedCache
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node, NodeShare
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.domain.ids import new_reservation_id
from gpudev.planning.cluster.reconcile_availability import assign_groups
from gpudev.ports.cloud import NodeGroup
from gpudev.ports.cluster import AvailabilityRow, ClusterState, ServerPhase, ServerState
from gpudev.processor.cluster_publisher import NodeGroupsState
from gpudev.wire.cluster import GpuAvailability
from gpudev.workflows.cluster.cluster_views import ClusterStatusViews
from gpudev.workflows.cluster.reconcile_availability import AvailabilityReconciliation
from support.paper_cloud import PaperCloud
from support.processor_world import World


def reconciling(reconciler_world: World, cloud: PaperCloud | None, **changes: Any) -> AvailabilityReconciliation:
    parts = AvailabilityReconciliation(
        cluster=reconciler_world.cluster,
        cordons=reconciler_world.stores.cordons,
        cloud=cloud,
        unreleased=UnreleasedCache(reconciler_world.stores.pool),
        catalogue=reconciler_world.stores.catalogue.catalogue,
        store=reconciler_world.stores.availability,
        clock=reconciler_world.clock,
        prefix="pytorch-gpu-dev",
        by="the-cron-job",
    )
    return replace(parts, **changes)


async def rows(stores: Stores) -> Mapping[str, AvailabilityRow]:
    return {row.gpu_type: row for row in await stores.catalogue.availability()}


async def told(reconciler_world: World, gpu_type: str = "h100") -> GpuAvailability:
    """What GET /v1/gpu/availability says."""
    stores = reconciler_world.stores
    surveying = ClusterStatusViews(
        UnreleasedCache(stores.pool),
        stores.nodes,
        stores.catalogue,
        PostgresQueuePlans(stores.pool),
        reconciler_world.clock,
        reconciler_world.settings.limits,
        reconciler_world.settings.timing,
    )
    found = {one.gpu_type: one for one in (await surveying.availability()).gpu_types}
    return found[gpu_type]


async def test_every_column_is_written_with_when_and_by_whom(reconciler_world: World, cloud: PaperCloud) -> None:
    cloud.groups = [
        NodeGroup("pytorch-gpu-dev-gpu-nodes-h100-1", 3, 2),
        NodeGroup("pytorch-gpu-dev-gpu-nodes-t4", 2, 1),
    ]
    reconciler_world.cluster.nodes = (Node("a", "h100", 8), Node("b", "h100", 8, foreign_units=2))
    report = await reconciling(reconciler_world, cloud).run()
    assert report.succeeded
    found = await rows(reconciler_world.stores)
    assert found["h100"] == AvailabilityRow("h100", 16, 14, 8, 1, 2, 3, 8, reconciler_world.clock.now(), "the-cron-job")
    assert found["t4"] == AvailabilityRow("t4", 4, 0, 0, 0, 1, 2, 4, reconciler_world.clock.now(), "the-cron-job")
    assert report.updated["h100"]["available_gpus"] == (0, 14)
    patterns = [warning for warning in report.warnings if "gpu-nodes-" in warning]
    assert any("pytorch-gpu-dev-gpu-nodes-a100*" in warning for warning in patterns)
    assert not any("gpu-nodes-h100*" in warning for warning in patterns)


async def test_what_is_promised_or_orphaned_counts_as_used(reconciler_world: World) -> None:
    reconciler_world.cluster.ready_at_once = False
    await reconciler_world.submit(2)
    await reconciler_world.turn()
    orphan = new_reservation_id()
    reconciler_world.cluster.servers[orphan] = ServerState(
        orphan, ServerPhase.READY, node_shares=(NodeShare(0, "node-1", 3),)
    )
    await reconciling(reconciler_world, None).run()
    assert (await rows(reconciler_world.stores))["h100"].available_gpus == 3


@pytest.mark.parametrize("refusal", [Unavailable("page 2 did not come"), ClusterError("not allowed")])
@pytest.mark.parametrize("part", ["cluster", "groups"])
async def test_facts_that_could_not_be_read_completely_change_nothing_and_the_age_tells(
    reconciler_world: World, cloud: PaperCloud, part: str, refusal: GpuDevError
) -> None:
    await reconciling(reconciler_world, cloud).run()
    before = await rows(reconciler_world.stores)
    reconciler_world.clock.move(minutes=7)
    reconciler_world.cluster.nodes = ()
    if part == "cluster":
        reconciler_world.cluster.refuse_look = refusal
    else:
        cloud.refuse_groups = refusal
    report = await reconciling(reconciler_world, cloud).run()
    assert not report.succeeded
    assert str(refusal) in report.errors[0]
    assert await rows(reconciler_world.stores) == before
    assert (await told(reconciler_world)).age_seconds == 7 * 60
    assert (await told(reconciler_world)).available_gpus == 8


async def test_one_types_failure_does_not_stop_the_others(reconciler_world: World) -> None:
    async with reconciler_world.stores.pool.acquire() as connection:
        await connection.execute("ALTER TABLE gpu_types ADD CHECK (gpu_type <> 'h100' OR available_gpus < 8)")
    reconciler_world.cluster.nodes = (Node("a", "h100", 8), Node("t", "t4", 4))
    report = await reconciling(reconciler_world, None).run()
    assert [error.split()[0] for error in report.errors] == ["h100"]
    assert (await rows(reconciler_world.stores))["t4"].available_gpus == 4
    assert (await rows(reconciler_world.stores))["h100"].updated_at is None


async def test_older_facts_never_replace_newer_ones(reconciler_world: World) -> None:
    class SlowLook:
        async def observe(self) -> ClusterState:
            seen = await reconciler_world.cluster.observe()
            await reconciler_world.submit(2)
            reconciler_world.clock.move(seconds=40)
            await reconciler_world.turn()  # the processor has seen more by now
            return seen

    report = await reconciling(reconciler_world, None, cluster=SlowLook()).run()
    assert "h100" in report.kept
    assert (await rows(reconciler_world.stores))["h100"].available_gpus == 6


async def test_a_dry_run_shows_what_would_change_and_changes_nothing(reconciler_world: World) -> None:
    before = await rows(reconciler_world.stores)
    report = await reconciling(reconciler_world, None).run(dry_run=True)
    assert report.updated["h100"]["available_gpus"] == (0, 8)
    assert await rows(reconciler_world.stores) == before


async def test_people_see_the_live_view_while_a_processor_runs_and_the_one_shots_facts_when_none_does(
    reconciler_world: World,
) -> None:
    await reconciler_world.turn()
    reconciler_world.clock.move(seconds=20)
    await reconciler_world.submit(2)
    assert (await told(reconciler_world)).age_seconds == 20
    reconciler_world.clock.move(minutes=30)
    reconciler_world.cluster.nodes = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))
    await reconciling(reconciler_world, None).run()
    reconciler_world.clock.move(seconds=5)
    seen = await told(reconciler_world)
    assert (seen.total_cluster_gpus, seen.age_seconds, seen.last_availability_updated_by) == (16, 5, "the-cron-job")


async def test_the_processor_publishes_the_same_numbers_with_the_groups_it_knows(reconciler_world: World) -> None:
    groups = NodeGroupsState(has_cloud=True)
    reconciler_world.processor = make_processor(
        reconciler_world.stores,
        reconciler_world.cluster,
        reconciler_world.clock,
        reconciler_world.settings.timing,
        groups=groups,
    )
    found = [NodeGroup("pytorch-gpu-dev-gpu-nodes-h100", 5, 4)]
    groups.groups = assign_groups(found, "pytorch-gpu-dev", ["h100"])
    await reconciler_world.turn()
    row = (await rows(reconciler_world.stores))["h100"]
    assert (row.running_instances, row.desired_capacity, row.available_gpus) == (4, 5, 8)
    groups.groups = None  # as after a restart, before the cloud has answered
    reconciler_world.processor._publisher._at = None
    await reconciler_world.turn()
    row = (await rows(reconciler_world.stores))["h100"]
    assert (row.running_instances, row.desired_capacity) == (4, 5)


async def test_a_type_that_is_not_offered_keeps_its_groups_from_its_namesake(
    reconciler_world: World, cloud: PaperCloud
) -> None:
    async with reconciler_world.stores.pool.acquire() as connection:
        await connection.execute(
            """
            INSERT INTO gpu_types (gpu_type, instance_type, max_gpus, cpus, memory_gb, is_active)
            VALUES ('h100-spot', 'p5.48xlarge', 8, 192, 2048, false)
            """
        )
    cloud.groups = [NodeGroup("pytorch-gpu-dev-gpu-nodes-h100-spot-1", 9, 9)]
    await reconciling(reconciler_world, cloud).run()
    assert (await rows(reconciler_world.stores))["h100"].desired_capacity == 1


async def test_the_age_is_told_to_people(reconciler_world: World) -> None:
    assert (await told(reconciler_world)).age_seconds is None
    await reconciling(reconciler_world, None).run()
    reconciler_world.clock.move(to=reconciler_world.clock.now() + timedelta(hours=2))
    assert (await told(reconciler_world)).age_seconds == 7200
