"""A place that the cluster refuses: whoever was given it waits again and gets another, and nobody's promise breaks."""

from dataclasses import replace

import pytest

from gpudev.domain.access.users import Role, User
from gpudev.domain.cluster import Node
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.workflows.reservations.reservation_actions import Cancellation
from support.processor_world import World

WHY = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu."


def refuse(world: World, rid: ReservationId, phase: ServerPhase = ServerPhase.STARTING) -> None:
    """The cluster has not taken it, and says why."""
    world.cluster.servers[rid] = ServerState(
        rid, phase, step="waiting for its node", reason=WHY, is_restartable=phase is ServerPhase.DEAD, rejection=WHY
    )


def take(world: World, node: str, units: int) -> None:
    """Somebody else's work is there now."""
    world.cluster.nodes = tuple(
        replace(one, foreign_units=units) if one.name == node else one for one in world.cluster.nodes
    )


async def place(world: World, gpus: int = 8, **wishes: object) -> ReservationId:
    world.cluster.ready_at_once = False
    rid = await world.submit(gpus, **wishes)  # type: ignore[arg-type]
    await world.turn()
    assert await world.status(rid) is Status.PREPARING
    return rid


@pytest.mark.parametrize("phase", [ServerPhase.STARTING, ServerPhase.DEAD])
async def test_who_is_refused_because_others_were_faster_is_placed_elsewhere(world: World, phase: ServerPhase) -> None:
    world.cluster.nodes = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))
    rid = await place(world)
    [first] = (await world.get(rid)).shares
    take(world, first.node, 1)
    refuse(world, rid, phase)
    world.cluster.ready_at_once = True
    await world.turn(5)
    row = await world.get(rid)
    assert row.status is Status.ACTIVE
    assert [share.node for share in row.shares] == [({"node-1", "node-2"} - {first.node}).pop()]
    assert row.launch_attempts == 0
    events = [(e.kind, e.message) for e in await world.stores.reservations.events(rid) if e.kind != "step"]
    assert [kind for kind, _ in events] == ["submitted", "preparing", "queued", "preparing", "active"]
    said = f"unmanaged use took what was free on node {first.node}"
    assert events[2][1] == f"requeued: {said} ({WHY})"


async def test_where_there_is_no_other_place_it_waits_at_the_front_however_often_it_is_refused(world: World) -> None:
    rid = await place(world)
    behind = await world.submit(8, user="bob")
    for _ in range(5):  # more than a start is tried
        take(world, "node-1", 2)
        refuse(world, rid)
        await world.turn(5)
        row = await world.get(rid)
        assert row.status is Status.QUEUED
        assert row.shares == ()
        assert await world.position(row.reservation_id) == 1
        assert row.preparing_at is None
        assert await world.position(behind) == 2
        assert rid not in world.cluster.servers
        take(world, "node-1", 0)
        await world.turn(2)
        assert await world.status(rid) is Status.PREPARING
    world.cluster.make_ready(rid)
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE


async def test_its_place_is_given_to_nobody_until_what_it_had_there_is_gone(world: World) -> None:
    world.cluster.nodes = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))
    gang = await place(world, 16, nodes=2)
    behind = await world.submit(4, user="bob")
    take(world, "node-2", 8)
    refuse(world, gang)
    world.cluster.slow_to_go = True
    await world.turn(5)
    row = await world.get(gang)
    assert row.status is Status.QUEUED
    assert len(row.shares) == 2
    assert await world.status(behind) is Status.QUEUED, "node-1 is still held"
    world.cluster.slow_to_go = False
    world.cluster.ready_at_once = True
    await world.turn(5)
    assert (await world.get(gang)).shares == ()
    assert await world.status(behind) is Status.ACTIVE


async def test_a_cancel_meanwhile_releases_only_when_everything_is_gone(world: World) -> None:
    rid = await place(world)
    take(world, "node-1", 1)
    refuse(world, rid)
    world.cluster.slow_to_go = True
    await world.turn(5)
    assert (await world.get(rid)).is_being_requeued
    ada = User(UserId(await world.user()), "ada", Role.USER)
    cancelled = await Cancellation(world.stores.reservations, world.clock).cancel(ada, str(rid))
    assert cancelled.status is Status.CANCELLED
    assert cancelled.released_at is None
    world.cluster.slow_to_go = False
    await world.turn()
    assert (await world.get(rid)).released_at is not None
    assert world.cluster.servers == {}


async def test_a_promise_to_somebody_behind_is_kept(world: World) -> None:
    world.cluster.nodes = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))
    world.cluster.ready_at_once = True
    runs = await world.submit(8, hours=2, user="carol")
    await world.turn()
    rid = await place(world, hours=20)
    waits = await world.submit(8, hours=1, user="bob")
    await world.turn()
    promised = await world.latest_start(waits)
    assert promised is not None
    [place_of] = (await world.get(rid)).shares
    take(world, place_of.node, 8)
    refuse(world, rid)
    await world.turn(5)
    assert await world.status(rid) is Status.QUEUED
    assert await world.latest_start(waits) == promised
    assert "delayed" not in await world.kinds(waits)
    assert await world.status(runs) is Status.ACTIVE


async def test_a_place_that_looks_free_is_tried_three_times_and_then_it_fails_in_words(world: World) -> None:
    rid = await place(world)
    for _ in range(3):
        refuse(world, rid, ServerPhase.DEAD)
        world.cluster.refuse_launch = ClusterError(WHY)
        await world.turn(2)
        world.clock.move(seconds=30)
    row = await world.get(rid)
    assert row.status is Status.FAILED
    assert WHY in (row.failure_reason or "")
    assert "queued" not in await world.kinds(rid)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (Node("node-1", "h100", 8, schedulable=False), "node node-1 was closed for new work"),
        (Node("node-1", "h100", 8, ready=False), "node node-1 does not answer"),
        (Node("node-2", "h100", 8), "node node-1 is gone"),
    ],
)
async def test_a_node_that_closes_before_it_has_taken_it_is_left(world: World, node: Node, words: str) -> None:
    rid = await place(world)
    world.cluster.nodes = (node,)
    refuse(world, rid)
    await world.turn(1)
    event = (await world.stores.reservations.events(rid))[-1]
    assert (event.kind, event.message) == ("queued", f"requeued: {words} ({WHY})")


async def test_one_that_runs_is_never_sent_back(world: World) -> None:
    rid = await world.submit(8)
    await world.turn()
    take(world, "node-1", 8)
    refuse(world, rid, ServerPhase.STARTING)
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE


async def test_what_is_left_of_a_place_that_was_refused_is_an_orphan(world: World) -> None:
    """A processor that was replaced in the middle of a launch may make it after its successor has cleared away."""
    rid = await place(world)
    take(world, "node-1", 8)
    refuse(world, rid)
    await world.turn(5)
    assert (await world.get(rid)).shares == ()
    refuse(world, rid)
    await world.turn()
    assert rid in world.cluster.servers, "reported first"
    world.clock.move(seconds=world.settings.timing.orphan_grace.total_seconds())
    await world.turn()
    assert rid not in world.cluster.servers
    assert await world.status(rid) is Status.QUEUED
