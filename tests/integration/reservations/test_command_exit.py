"""A reservation whose command has ended is over, once, whoever was there to see it."""

from dataclasses import replace

from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cluster import ServerPhase
from support.processor_world import World

END = CommandExit(3, ("epoch 1", "out of memory"))


async def test_its_gpus_are_free_and_the_history_has_exit_code_and_last_lines(world: World) -> None:
    first, second = await world.submit(8), await world.submit(8, user="bob")
    await world.turn()
    seen = world.cluster.servers[first]
    world.cluster.servers[first] = replace(seen, phase=ServerPhase.DEAD, is_restartable=True, command_exit=END)
    await world.turn()
    row = await world.get(first)
    assert row.status is Status.EXPIRED
    assert row.reservation_ended == world.clock.now()
    assert row.released_at is not None
    assert row.failure_reason == "the command ended with exit code 3"
    assert (await world.status(second)).holds_capacity
    ended = [event for event in await world.stores.reservations.events(first) if event.kind == "expired"]
    assert [event.message for event in ended] == [END.message]


async def test_one_that_was_cancelled_meanwhile_stays_so(world: World) -> None:
    rid = await world.submit(1)
    await world.turn()
    world.cluster.servers[rid] = replace(world.cluster.servers[rid], phase=ServerPhase.DEAD, command_exit=END)
    await world.cancel(rid)
    await world.turn()
    assert await world.status(rid) is Status.CANCELLED
    assert "expired" not in await world.kinds(rid)


async def test_one_that_ended_well_has_nothing_to_explain(world: World) -> None:
    rid = await world.submit(1)
    await world.turn()
    world.cluster.servers[rid] = replace(
        world.cluster.servers[rid], phase=ServerPhase.DEAD, command_exit=CommandExit(0)
    )
    await world.turn()
    row = await world.get(rid)
    assert (row.status, row.failure_reason) == (Status.EXPIRED, None)
