"""Whoever waits for a cluster that cannot start anybody right now is told so, once, and why it came to nothing."""

from dataclasses import replace

import pytest

from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cluster import ServerSpec
from support.processor_world import World

WEBHOOK = "the API server failed (500): failed calling webhook on 127.0.0.1:{}"


async def told(world: World, rid: ReservationId) -> list[str]:
    events = await world.stores.reservations.events(rid)
    return [event.message for event in events if event.kind == "step"]


def say(world: World, rid: ReservationId, step: str) -> None:
    world.cluster.servers[rid] = replace(world.cluster.servers[rid], step=step)


async def test_what_keeps_the_cluster_from_starting_anybody_is_told_once(world: World) -> None:
    rid = await world.submit(1)
    for port in range(40_000, 40_004):
        world.cluster.refuse_launch = Unavailable(WEBHOOK.format(port))
        await world.turn(1)
        world.clock.move(seconds=5)
    row = await world.get(rid)
    assert row.status is Status.PREPARING
    assert row.step is not None and "failed calling webhook" in row.step
    assert len(await told(world, rid)) == 1, "the number in it makes no news"
    world.cluster.refuse_launch = Unavailable("the range is full")
    await world.turn(1)
    assert (await world.get(rid)).step == "cannot be started right now, trying again: the range is full"
    assert len(await told(world, rid)) == 2


async def test_who_waited_in_vain_is_told_for_what(world: World) -> None:
    world.cluster.refuse_launch = Unavailable("the range is full")
    rid = await world.submit(1)
    for _ in range(5):
        await world.turn(1)
        world.clock.move(minutes=4)
    await world.turn()
    row = await world.get(rid)
    assert row.status is Status.FAILED
    assert row.failure_reason is not None and "the range is full" in row.failure_reason


async def test_steps_of_what_is_there_do_not_take_turns_with_what_cannot_be_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod is on its way and its service cannot be made."""
    world.cluster.ready_at_once = False
    whole = world.cluster.ensure_server

    async def half(spec: ServerSpec) -> None:
        await whole(spec)
        raise Unavailable("the range is full")

    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, "ensure_server", half)
        rid = await world.submit(1)
        for seconds in range(0, 40, 5):
            await world.turn(1)
            say(world, rid, f"pulling image, {seconds} s")
            world.clock.move(seconds=5)
        assert [line for line in await told(world, rid) if "range is full" in line] == [
            "cannot be started right now, trying again: the range is full"
        ]
        assert len(await told(world, rid)) <= 2
    world.clock.move(seconds=5)
    await world.turn()
    say(world, rid, "pulling image, 1 min")
    world.clock.move(seconds=20)
    await world.turn()
    assert (await world.get(rid)).step == "pulling image, 1 min", "it goes on, and so do its steps"


async def test_one_that_runs_is_not_said_to_be_unable_to_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = world.cluster.ensure_server

    async def half(spec: ServerSpec) -> None:
        await whole(spec)
        raise Unavailable("the policy cannot be made")

    monkeypatch.setattr(world.cluster, "ensure_server", half)
    rid = await world.submit(1)
    for _ in range(4):
        await world.turn()
        world.clock.move(seconds=5)
    row = await world.get(rid)
    assert (row.status, row.step) == (Status.ACTIVE, None)
