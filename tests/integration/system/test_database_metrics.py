"""Metrics that come from the database, over a real one: the present, and what happened since the last question."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.adapters.postgres.database.metrics_queries import PostgresEventHistory, PostgresSystemState
from gpudev.adapters.postgres.database.roles import PROCESSOR
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.errors import Unavailable
from gpudev.domain.reservations.lifecycle import Status
from gpudev.metrics.event_counters import ReservationTransition, count_events
from gpudev.metrics.exposition import SystemExposition
from gpudev.settings import Settings
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.processor_world import World


@pytest.fixture
async def world(stores: Stores, stores_of: Callable[[str], Stores], clock: ManualClock, settings: Settings) -> World:
    theirs = stores_of(PROCESSOR)
    nodes = [Node("node-1", "h100", 8), Node("node-2", "h100", 8, schedulable=False)]
    cluster = PaperCluster(nodes, clock)
    processor = make_processor(theirs, cluster, clock, settings.timing)
    return World(replace(stores, leases=theirs.leases), cluster, clock, processor, settings)


@pytest.fixture
def eyes(world: World, stores_of: Callable[[str], Stores]) -> SystemExposition:
    """With the rights of a processor."""
    pool = stores_of(PROCESSOR).pool
    return SystemExposition(
        PostgresSystemState(pool).load_state,
        PostgresEventHistory(pool),
        world.clock,
        is_planning=lambda: world.processor.is_planning,
        staleness=lambda: {"pods": 1.5},
    )


async def values(eyes: SystemExposition) -> dict[str, float]:
    """By name and labels, as Prometheus would read them."""
    lines = (await eyes.text()).decode().splitlines()
    return {
        name: float(number)
        for line in lines
        if not line.startswith("#") and (match := re.fullmatch(r"(gpudev_\S+(?:\{.*\})?) (\S+)", line))
        for name, number in [match.groups()]
    }


async def test_gpus_are_used_idle_or_unavailable_and_nothing_else(world: World, eyes: SystemExposition) -> None:
    await world.submit(2)
    await world.turn()
    seen = await values(eyes)
    assert seen['gpudev_gpus{gpu_type="h100",state="used"}'] == 2
    assert seen['gpudev_gpus{gpu_type="h100",state="idle"}'] == 6
    assert seen['gpudev_gpus{gpu_type="h100",state="unavailable"}'] == 8  # of the closed node
    assert seen['gpudev_gpus_capacity{gpu_type="h100"}'] == 16
    assert seen['gpudev_nodes{gpu_type="h100",state="open"}'] == 1
    assert seen['gpudev_nodes{gpu_type="h100",state="closed"}'] == 1
    assert seen["gpudev_planner_lease_held"] == 1
    assert seen['gpudev_cluster_watch_staleness_seconds{kind="pods"}'] == 1.5


async def test_the_queue_is_shown_with_its_length_its_wishes_and_its_oldest_wait(
    world: World, eyes: SystemExposition
) -> None:
    await world.submit(8)
    await world.turn()
    await world.submit(4, user="bob")
    world.clock.move(minutes=10)
    await world.submit(2, user="eve")
    await world.turn()
    seen = await values(eyes)
    assert seen['gpudev_queue_length{gpu_type="h100"}'] == 2
    assert seen['gpudev_queue_gpus{gpu_type="h100"}'] == 6
    assert seen['gpudev_queue_oldest_wait_seconds{gpu_type="h100"}'] == 600
    assert seen['gpudev_reservations{gpu_type="h100",status="active"}'] == 1
    assert seen['gpudev_reservations{gpu_type="h100",status="queued"}'] == 2
    assert seen["gpudev_users_served"] == 1


async def test_waits_starts_and_errors_of_estimates_are_counted_once_whoever_wrote_them(
    world: World, eyes: SystemExposition
) -> None:
    await world.turn()
    before = await values(eyes)
    first = await world.submit(8, hours=2)
    await world.turn()
    await world.submit(8, user="bob")
    await world.turn()
    world.clock.move(hours=1)
    await world.cancel(first)  # as the API does: not the processor
    await world.turn(4)
    await values(eyes)
    after = await values(eyes)  # asked twice, told once

    def grew(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert grew('gpudev_reservation_transitions_total{gpu_type="h100",to="submitted"}') == 2
    assert grew('gpudev_reservation_transitions_total{gpu_type="h100",to="cancelled"}') == 1
    assert grew('gpudev_reservation_transitions_total{gpu_type="h100",to="active"}') == 2
    assert grew('gpudev_reservation_transitions_total{gpu_type="h100",to="released"}') == 1
    assert grew('gpudev_reservation_wait_seconds_count{gpu_type="h100"}') == 2
    assert grew('gpudev_reservation_wait_seconds_sum{gpu_type="h100"}') == pytest.approx(3600, abs=1)
    assert grew('gpudev_reservation_startup_seconds_count{gpu_type="h100"}') == 2
    first_told = (await world.stores.estimates.outcomes_since(world.clock.now() - timedelta(days=1)))[0]
    assert first_told.started_at is not None
    error = abs((first_told.started_at - first_told.estimate.interval.expected).total_seconds())
    assert grew('gpudev_expected_start_error_seconds_count{gpu_type="h100"}') == 1
    assert grew('gpudev_expected_start_error_seconds_sum{gpu_type="h100"}') == pytest.approx(error)
    assert error > 60  # Bob's turn came sooner than he was told
    assert grew('gpudev_guaranteed_starts_broken_total{gpu_type="h100"}') == 0


async def test_a_start_after_the_latest_that_was_told_is_a_broken_promise(world: World, eyes: SystemExposition) -> None:
    await world.turn()
    before = await values(eyes)
    step = ReservationTransition(
        kind="preparing",
        gpu_type="h100",
        at=world.clock.now(),
        created_at=world.clock.now() - timedelta(hours=3),
        preparing_at=world.clock.now(),
        earliest_promise=world.clock.now() - timedelta(minutes=1),
    )
    count_events([step])
    after = await values(eyes)
    name = 'gpudev_guaranteed_starts_broken_total{gpu_type="h100"}'
    assert after[name] - before.get(name, 0) == 1


async def test_messages_and_dead_letters_are_counted_by_queue(world: World, eyes: SystemExposition) -> None:
    async with world.stores.pool.acquire() as connection:
        await connection.execute("SELECT pgmq.send('gpu_reservations', '{}'::jsonb)")
        await connection.execute("SELECT pgmq.send('disk_operations_dlq', '{}'::jsonb)")
    seen = await values(eyes)
    assert seen['gpudev_queue_messages{queue="gpu_reservations"}'] == 1
    assert seen['gpudev_dead_letters{queue="gpu_reservations"}'] == 0
    assert seen['gpudev_dead_letters{queue="disk_operations"}'] == 1
    assert seen["gpudev_planner_lease_held"] == 0


async def test_a_processor_that_does_not_plan_counts_nothing_that_happened(
    world: World, eyes: SystemExposition
) -> None:
    await world.turn()
    eyes._is_planning = lambda: False
    before = await values(eyes)
    rid = await world.submit(1)
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE
    after = await values(eyes)
    name = 'gpudev_reservation_transitions_total{gpu_type="h100",to="submitted"}'
    assert after.get(name) == before.get(name)
    assert after["gpudev_planner_leader"] == 0


async def test_while_the_database_is_away_only_that_is_told(world: World) -> None:
    async def nothing(_now: object) -> object:
        raise Unavailable("it is away")

    eyes = SystemExposition(
        nothing,  # type: ignore[arg-type]
        PostgresEventHistory(world.stores.pool),
        world.clock,
        is_planning=lambda: False,
    )
    seen = await values(eyes)
    assert seen["gpudev_database_up"] == 0
    assert not any(name.startswith(("gpudev_gpus", "gpudev_queue")) for name in seen)
    assert "gpudev_planner_leader" in seen
