"""A long queue is followed, not planned anew every time: the same promises, told a little later."""

from datetime import timedelta
from itertools import pairwise

import pytest

from gpudev.adapters.postgres.queue.estimates import PostgresQueuePlans
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.planning.queue.eta_report import make_eta_reports
from support.processor_world import World


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("gpudev.processor.queue_planner.LONG_QUEUE", 1)
    return world


async def published(world: World) -> dict[str, int]:
    plan = (await PostgresQueuePlans(world.stores.pool).refresh())["h100"]
    return {str(rid): place.position for rid, place in plan.estimates.items()}


async def live(world: World, minutes: float) -> None:
    """Let time pass, turning whenever time alone changes something, as the running processor does."""
    end = world.clock.now() + timedelta(minutes=minutes)
    while True:
        await world.turn(6)
        due = world.processor._next_at
        if due is None or due > end:
            break
        world.clock.move(to=max(due, world.clock.now() + timedelta(milliseconds=1)))
    world.clock.move(to=end)
    await world.turn(6)


async def test_a_newcomer_is_told_at_once_and_starts_when_there_is_room(world: World) -> None:
    first, second = await world.submit(8, hours=4), await world.submit(8, hours=4)
    await world.turn()
    third = await world.submit(8, hours=4)
    await world.turn(1)
    rows = [await world.get(rid) for rid in (second, third)]
    estimates = [row.estimate for row in rows if row.estimate is not None]
    assert [estimate.position for estimate in estimates] == [1, 2]
    assert estimates[1].latest is not None
    assert estimates[1].interval is not None
    assert (await world.kinds(third)) == ["submitted", "queued"]
    await world.cancel(first)
    await world.turn()
    assert await world.status(second) is Status.ACTIVE
    assert await world.status(third) is Status.QUEUED


async def test_everybody_is_told_anew_after_a_pause(world: World) -> None:
    running, *waiting = [await world.submit(8, hours=4) for _ in range(4)]
    await world.turn()
    world.clock.move(seconds=1)
    await world.cancel(running)
    await world.turn()
    assert list((await published(world)).values()) == [1, 2, 3], "it was told a moment ago"
    assert world.processor._next_at is not None
    world.clock.move(to=world.processor._next_at)
    await world.turn(1)
    assert await published(world) == {str(waiting[1]): 1, str(waiting[2]): 2}
    assert [await world.position(rid) for rid in waiting] == [None, 1, 2]


async def test_hand_overs_that_take_their_time_break_no_promise(world: World) -> None:
    waiting = [await world.submit(8, hours=1, user=name) for name in ("ada", "bob", "eve", "joe")]
    await world.turn()
    world.cluster.ready_at_once = False
    for ended, follower in pairwise(waiting):
        world.clock.move(to=(await world.get(ended)).expires_at)
        world.cluster.slow_to_go = True
        await world.turn()
        world.clock.move(seconds=25)
        world.cluster.slow_to_go = False
        await world.turn()
        assert await world.status(follower) is Status.PREPARING
        world.clock.move(seconds=50)
        world.cluster.make_ready(follower)
        await world.turn()
        assert await world.status(follower) is Status.ACTIVE
    outcomes = await world.stores.estimates.outcomes_since(world.clock.now() - timedelta(days=1))
    (everything, _) = make_eta_reports(outcomes, world.clock.now())
    assert (everything.started, everything.breaches) == (3, ())


async def test_many_come_and_go_and_the_books_are_right(world: World) -> None:
    world.cluster.nodes = tuple(Node(f"node-{number}", "h100", 8) for number in range(3))
    asked = [1, 2, 4, 8, 8, 1, 4, 2, 8, 4, 1, 8, 2, 4, 8, 1]
    for number, gpus in enumerate(asked * 2):
        await world.submit(gpus, hours=1 + number % 3, user=f"user-{number % 5}")
        if number % 4 == 3:
            await live(world, 7)
    for _ in range(60):
        running = [row for row in await world.stores.reservations.unreleased() if row.status is Status.ACTIVE]
        if not running:
            break
        await world.cancel(running[len(running) // 2].reservation_id)
        await live(world, 13)
    assert await world.stores.reservations.unreleased() == []
    outcomes = await world.stores.estimates.outcomes_since(world.clock.now() - timedelta(days=9))
    (everything, *_) = make_eta_reports(outcomes, world.clock.now())
    assert everything.started > 5
    assert everything.breaches == ()


async def test_another_processor_keeps_the_promises(world: World) -> None:
    waiting = [await world.submit(8, hours=hours) for hours in (4, 3, 2, 1)]
    await world.turn()
    before = [await world.latest_start(rid) for rid in waiting[1:]]
    assert world.processor._lease is not None
    await world.stores.leases.release(world.processor._lease)
    world.processor = make_processor(world.stores, world.cluster, world.clock, world.settings.timing)
    world.clock.move(seconds=10)
    await world.turn()
    after = [await world.latest_start(rid) for rid in waiting[1:]]
    assert all(b is not None and a is not None and a <= b for a, b in zip(after, before, strict=True))


async def test_an_extension_moves_nobody_and_is_followed(world: World) -> None:
    world.cluster.nodes = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))
    first, second = await world.submit(8, hours=1), await world.submit(8, hours=4)
    waiting = await world.submit(8, hours=1)
    await world.turn()
    row = await world.get(second)
    assert row.expires_at is not None
    longer = {"expires_at": row.expires_at + timedelta(hours=2), "warned_minutes": None}
    change = Change(second, row.status, row.version, NewEvent("extended", "by 2 hours"), fields=longer)
    before = await world.latest_start(waiting)
    await world.stores.reservations.apply_change(change, now=world.clock.now())
    world.clock.move(seconds=30)
    await world.turn()
    assert await world.latest_start(waiting) == before
    world.clock.move(to=(await world.get(first)).expires_at)
    await world.turn(4)
    assert await world.status(waiting) is Status.ACTIVE


async def test_very_many_at_once_are_all_told(world: World) -> None:
    await world.submit(8, hours=4)
    await world.turn()
    crowd = [await world.submit(8, hours=1, user=f"user-{number}") for number in range(40)]
    await world.turn(1)
    assert [await world.position(rid) for rid in crowd] == list(range(1, 41))
    assert {await world.status(rid) for rid in crowd} == {Status.QUEUED}
