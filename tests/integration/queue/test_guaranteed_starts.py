"""What those who wait are told, turn by turn: promises that hold, and explanations when they cannot."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from gpudev.adapters.postgres.queue.estimates import PostgresQueuePlans
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.access.users import Role
from gpudev.domain.cluster import Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import DelayCause, QueuePlan
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.planning.queue.eta_report import make_eta_reports
from gpudev.settings import FairShareSettings
from support.processor_world import World

TWO_NODES = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))


async def plan_of(stores: Stores, gpu_type: str = "h100") -> QueuePlan:
    return (await PostgresQueuePlans(stores.pool).refresh())[gpu_type]


async def messages(world: World, reservation_id: ReservationId, kind: str) -> list[str]:
    events = await world.stores.reservations.events(reservation_id)
    return [event.message for event in events if event.kind == kind]


async def test_the_promise_allows_for_preparing_and_clearing_away(world: World) -> None:
    first, second, third = [await world.submit(8, hours=4) for _ in range(3)]
    await world.turn()
    end = (await world.get(first)).expires_at
    assert end is not None
    clearing, preparing = timedelta(seconds=30), timedelta(minutes=1)
    rows = [await world.get(second), await world.get(third)]
    assert [await world.latest_start(row.reservation_id) for row in rows] == [
        end + clearing,
        end + clearing + preparing + timedelta(hours=4) + clearing,
    ]
    assert await world.start_by_planned_ends(rows[0].reservation_id) == end


async def test_a_hand_over_that_takes_its_time_breaks_no_promise(world: World) -> None:
    waiting = [await world.submit(8, hours=1, user=name) for name in ("ada", "bob", "eve")]
    await world.turn()
    world.cluster.ready_at_once = False
    for ended, follower in pairwise(waiting):
        promised = await world.latest_start(follower)
        assert promised is not None
        world.clock.move(to=(await world.get(ended)).expires_at)
        world.cluster.slow_to_go = True
        await world.turn()
        world.clock.move(seconds=25)
        world.cluster.slow_to_go = False
        await world.turn()
        started = (await world.get(follower)).preparing_at
        assert started is not None
        assert started <= promised
        world.clock.move(seconds=50)
        world.cluster.make_ready(follower)
        await world.turn()
        assert await world.status(follower) is Status.ACTIVE
    assert not await messages(world, waiting[-1], "delayed")
    (all_types, *_) = make_eta_reports(
        await world.stores.estimates.outcomes_since(world.clock.now() - timedelta(days=1)), world.clock.now()
    )
    assert (all_types.started, all_types.breaches) == (2, ())


async def test_another_processor_keeps_what_the_one_before_promised(world: World) -> None:
    """Two small ones leave a node; planned anew, the whole-node request could be put elsewhere and later ones first."""
    for _ in range(2):
        await world.submit(8, hours=4)
    await world.turn()
    told = {}
    for hours in (2, 8, 3):
        rid = await world.submit(4, hours=hours, user="bob")
        await world.turn()
        told[rid] = await world.latest_start(rid)
    other = make_processor(world.stores, world.cluster, world.clock, world.settings.timing)
    await world.processor._leases.release(world.processor._lease)  # type: ignore[arg-type]
    world.processor = other
    await world.turn()
    for rid, promised in told.items():
        latest = await world.latest_start(rid)
        assert latest is not None
        assert promised is not None
        assert latest <= promised
    assert (
        other._queue_planner._memories["h100"].promises.keys()
        == told.keys() | other._queue_planner._memories["h100"].promises.keys()
    )


async def test_who_leaves_early_moves_everybody_up_at_once(world: World) -> None:
    first, second, third = [await world.submit(8, hours=4) for _ in range(3)]
    await world.turn()
    before = (await plan_of(world.stores)).estimates[third]
    world.clock.move(minutes=10)
    await world.cancel(first)
    await world.turn()
    assert await world.status(second) is Status.ACTIVE
    after = (await plan_of(world.stores)).estimates[third]
    assert (before.position, after.position) == (2, 1)
    assert before.latest is not None
    assert after.latest is not None
    assert after.latest < before.latest - timedelta(hours=3)


async def test_a_lost_node_is_told_to_those_it_was_promised_to(world: World) -> None:
    world.cluster.nodes = TWO_NODES
    first, second = await world.submit(8, hours=1), await world.submit(8, hours=8)
    waiting = await world.submit(8, hours=1, user="bob")
    await world.turn()
    promised = await world.latest_start(waiting)
    shares = (await world.get(first)).shares
    world.cluster.nodes = tuple(replace(node, ready=node.name != shares[0].node) for node in TWO_NODES)
    await world.turn()
    (message,) = await messages(world, waiting, "delayed")
    assert f"node {shares[0].node} was lost" in message
    later = await world.latest_start(waiting)
    assert promised is not None
    assert later is not None
    assert later > promised
    await world.turn()
    assert len(await messages(world, waiting, "delayed")) == 1, "it is told once"
    assert await world.status(second) is Status.ACTIVE
    world.clock.move(to=later)
    await world.turn()
    now = world.clock.now()
    (everything, _) = make_eta_reports(await world.stores.estimates.outcomes_since(now - timedelta(days=1)), now)
    (breach,) = everything.breaches
    assert (breach.reservation_id, breach.cause) == (waiting, DelayCause.NODE_LOST)


async def test_whoever_runs_on_a_lost_node_is_told_and_goes_on_when_it_is_back(world: World) -> None:
    rid = await world.submit(8, hours=4)
    await world.turn()
    world.cluster.nodes = (Node("node-1", "h100", 8, ready=False),)
    await world.turn()
    row = await world.get(rid)
    assert (row.status, row.step) == (Status.ACTIVE, "node node-1 does not answer")
    await world.turn()
    assert len(await messages(world, rid, "node_lost")) == 1
    world.cluster.nodes = (Node("node-1", "h100", 8),)
    await world.turn()
    row = await world.get(rid)
    assert (row.status, row.step) == (Status.ACTIVE, None)
    assert len(await messages(world, rid, "reconnected")) == 1


async def test_one_whose_node_and_dev_server_are_both_gone_has_failed(world: World) -> None:
    rid = await world.submit(8, hours=4)
    await world.turn()
    world.cluster.nodes, world.cluster.servers = (), {}
    await world.turn()
    row = await world.get(rid)
    assert row.status is Status.FAILED
    assert "node node-1 was lost" in (row.failure_reason or "")
    assert row.released_at is not None


async def test_what_was_told_is_kept_and_compared_with_what_happened(world: World) -> None:
    first, second = await world.submit(8, hours=4), await world.submit(8, hours=4, user="bob")
    await world.turn()
    (outcome,) = await world.stores.estimates.outcomes_since(world.clock.now())
    assert (outcome.estimate.reservation_id, outcome.started_at, outcome.estimate.is_newcomer) == (second, None, True)
    span = outcome.estimate.interval
    assert world.clock.now() <= span.earliest <= span.expected <= span.latest_likely <= outcome.estimate.latest
    world.clock.move(minutes=90)
    await world.turn()
    outcomes = await world.stores.estimates.outcomes_since(world.clock.now())
    assert [one.estimate.is_newcomer for one in outcomes] == [True, False], "once an hour it is kept again"
    await world.cancel(first)
    await world.turn()
    outcomes = await world.stores.estimates.outcomes(10)
    assert [one.started_at for one in outcomes] == [world.clock.now()] * 2
    (stay,) = await world.stores.estimates.list_usage_samples(10)
    assert (stay.used, stay.granted) == (timedelta(minutes=90), timedelta(hours=4))
    (everything, h100) = make_eta_reports(outcomes, world.clock.now())
    error = abs((world.clock.now() - span.expected).total_seconds()) / 60
    assert h100.expected.median == round(error, 2)
    assert everything.breaches == ()


async def test_people_who_leave_early_make_expected_starts_earlier(world: World) -> None:
    waits = []
    for _ in range(30):
        running, waiting = await world.submit(8, hours=8), await world.submit(8, hours=8, user="bob")
        await world.turn()
        span = (await plan_of(world.stores)).estimates[waiting].interval
        assert span is not None
        waits.append(span.expected - world.clock.now())
        world.clock.move(minutes=6)
        for rid in (waiting, running):
            await world.cancel(rid)
        await world.turn()
    assert waits[-1] < waits[0] / 3


async def test_a_long_queue_does_not_mean_a_row_for_everybody_at_every_event(world: World) -> None:
    running = [await world.submit(8, hours=1)]
    for _ in range(150):
        await world.submit(8, hours=1, user="bob")
    await world.turn()
    async with world.stores.pool.acquire() as connection:
        await connection.execute("UPDATE reservations SET last_queue_update = NULL")
    await world.cancel(running[0])
    await world.turn()
    async with world.stores.pool.acquire() as connection:
        written = await connection.fetchval("SELECT count(*) FROM reservations WHERE last_queue_update IS NOT NULL")
        wrong = await connection.fetch(
            """
            SELECT queue_position, row_number() OVER (ORDER BY seq) AS really FROM reservations WHERE status = 'queued'
            """
        )
    assert 0 < written < 60
    assert all(abs(row["queue_position"] - row["really"]) <= 0.1 * row["queue_position"] for row in wrong)
    positions = sorted(told.position for told in (await plan_of(world.stores)).estimates.values())
    assert positions == list(range(1, 150))


class TestFairShare:
    async def heavy_and_light(self, world: World, fair_share: FairShareSettings) -> list[ReservationId]:
        """Ada has used the node for a day and wants more; Bob comes after her and has used nothing."""
        world.processor = make_processor(world.stores, world.cluster, world.clock, world.settings.timing, fair_share)
        first = await world.submit(8, hours=24, user="ada")
        await world.turn()
        world.clock.move(hours=20)
        waiting = [await world.submit(8, hours=4, user=name) for name in ("ada", "ada", "bob", "bob")]
        world.clock.move(minutes=2)
        await world.turn()
        await world.cancel(first)
        await world.turn()
        return waiting

    async def test_it_is_off_by_default(self, world: World) -> None:
        waiting = await self.heavy_and_light(world, FairShareSettings())
        assert await world.status(waiting[0]) is Status.ACTIVE

    async def test_who_used_less_goes_first(self, world: World) -> None:
        waiting = await self.heavy_and_light(world, FairShareSettings(on=True))
        assert [await world.status(rid) for rid in waiting] == [
            Status.QUEUED,
            Status.QUEUED,
            Status.ACTIVE,
            Status.QUEUED,
        ]
        assert [await world.position(rid) for rid in waiting] == [2, 3, None, 1]

    async def test_a_weight_makes_use_count_less(self, world: World) -> None:
        await world.user("ada")
        await world.stores.users.set_weight("ada", 1000)
        waiting = await self.heavy_and_light(world, FairShareSettings(on=True))
        assert await world.status(waiting[2]) is Status.ACTIVE, "she has used something, he nothing"
        assert [await world.position(rid) for rid in waiting] == [1, 2, None, 3]

    async def test_who_has_waited_long_enough_goes_first_whatever_they_used(self, world: World) -> None:
        waiting = await self.heavy_and_light(world, FairShareSettings(on=True, patience_hours=0.01))
        assert await world.status(waiting[0]) is Status.ACTIVE


async def test_an_operators_priority_goes_before_promises_and_the_others_are_told(world: World) -> None:
    await world.stores.users.add_user("olga", Role.OPERATOR)
    await world.submit(8, hours=4)
    waiting = [await world.submit(8, hours=4, user="bob") for _ in range(2)]
    await world.turn()
    row = await world.get(waiting[1])
    event = NewEvent("priority", "olga set its priority to 10")
    await world.stores.reservations.apply_change(
        Change(row.reservation_id, row.status, row.version, event, fields={"priority": 10}), now=world.clock.now()
    )
    await world.turn()
    assert [await world.position(rid) for rid in waiting] == [2, 1]
    (message,) = await messages(world, waiting[0], "delayed")
    assert "operator" in message
