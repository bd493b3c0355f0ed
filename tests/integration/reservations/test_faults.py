"""Turns of the processor when the world around it is not as it was: nothing spins, nothing is stuck."""

import asyncio
from dataclasses import replace

import pytest

from gpudev.domain.cluster import Node
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.processor import planning_loop
from support.processor_world import World


async def test_a_node_that_came_back_as_another_type_stops_nobody_and_its_gpus_stay_owned(world: World) -> None:
    world.cluster.nodes = (Node("node-1", "h100", 8),)
    before = await world.submit(6)
    await world.turn()
    world.cluster.nodes = (Node("node-1", "a100", 8),)
    small, large = await world.submit(2, gpu_type="a100"), await world.submit(8, gpu_type="a100")
    await world.turn()
    assert await world.status(before) is Status.ACTIVE
    row = await world.get(small)
    assert row.status is Status.ACTIVE
    assert row.shares[0].gpu_indices == (6, 7)
    assert await world.status(large) is Status.QUEUED
    published = {row.gpu_type: row.available_gpus for row in await world.stores.catalogue.availability()}
    assert published["a100"] == 0
    await world.cancel(before)
    await world.cancel(small)
    await world.turn()
    assert await world.status(large) is Status.ACTIVE


async def test_what_does_not_go_is_asked_again_at_the_next_sweep_and_not_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_loop, "_LET_LAUNCH_S", 0.0)  # the start's own second turn is over by then
    rid = await world.submit(1)
    await world.turn()
    world.cluster.slow_to_go = True
    await world.cancel(rid)
    await world.turn()
    world.processor._woken.clear()
    await world.turn(1)
    await asyncio.sleep(0)
    assert not world.processor._woken.is_set(), "it would turn over for as long as something does not go"


async def test_one_whose_row_changes_while_it_is_torn_down_is_looked_at_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = await world.submit(1)
    await world.turn()
    await world.cancel(rid)
    ensure_gone = world.cluster.ensure_gone

    async def meanwhile(reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        world.processor._woken.clear()  # here: the teardown may be over before the cycle is
        row = await world.get(rid)
        told = Change(rid, row.status, row.version, NewEvent("step", "somebody else has said something"))
        await world.stores.reservations.apply_change(told, now=world.clock.now())
        return await ensure_gone(reservation_id, keep_files=keep_files)

    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, "ensure_gone", meanwhile)
        await world.processor.run_cycle()
        await world.processor.effects.wait_idle()
        await asyncio.sleep(0)
    assert not (await world.get(rid)).is_released, "by one who had not seen that"
    assert world.processor._woken.is_set()
    await world.turn(1)
    assert (await world.get(rid)).is_released


async def test_a_cluster_that_is_away_when_it_should_start_one_is_asked_again_after_a_pause(world: World) -> None:
    world.cluster.refuse_launch = Unavailable("the zygote died repeatedly")
    rid = await world.submit(1)
    await world.turn(5)
    assert world.cluster.asked == 1
    for _ in range(4):
        world.clock.move(seconds=3)
        await world.turn(1)
    row = await world.get(rid)
    assert world.cluster.asked == 5
    assert (row.status, row.launch_attempts) == (Status.PREPARING, 0)
    world.cluster.refuse_launch = None
    world.clock.move(seconds=3)
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE


async def test_attempts_are_counted_anew_for_one_that_must_be_started_again(world: World) -> None:
    world.cluster.refuse_launch = ClusterError("no port is free")
    rid = await world.submit(1)
    for _ in range(2):
        await world.turn()
        world.clock.move(seconds=30)
    world.cluster.refuse_launch = None
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE
    world.cluster.kill(rid, unwatched=True)
    world.cluster.refuse_launch = ClusterError("no port is free")
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE
    world.cluster.servers[rid] = replace(world.cluster.servers[rid], reason="the machine was restarted")
    world.cluster.refuse_launch = None
    world.clock.move(seconds=30)
    await world.turn()
    assert (await world.get(rid)).step is None
