"""A reservation whose command has ended is over, once, whoever was there to see it."""

from dataclasses import replace

from gpudev.domain.reservations.command_exit import RunEnd
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cluster import Phase
from support.world import World

END = RunEnd(3, ("epoch 1", "out of memory"))


async def test_its_gpus_are_free_and_the_history_has_exit_code_and_last_lines(world: World) -> None:
    first, second = await world.submit(8), await world.submit(8, user="bob")
    await world.turn()
    seen = world.cluster.servers[first]
    world.cluster.servers[first] = replace(seen, phase=Phase.DEAD, lost_unwatched=True, run_end=END)
    await world.turn()
    row = await world.get(first)
    assert row.status is Status.EXPIRED
    assert row.reservation_ended == world.clock.now()
    assert row.released_at is not None
    assert row.failure_reason == "its command ended with exit code 3"
    assert (await world.status(second)).holds_capacity
    ended = [event for event in await world.stores.reservations.events(first) if event.kind == "expired"]
    assert [event.message for event in ended] == [END.words]


async def test_one_that_was_cancelled_meanwhile_stays_so(world: World) -> None:
    rid = await world.submit(1)
    await world.turn()
    world.cluster.servers[rid] = replace(world.cluster.servers[rid], phase=Phase.DEAD, run_end=END)
    await world.cancel(rid)
    await world.turn()
    assert await world.status(rid) is Status.CANCELLED
    assert "expired" not in await world.kinds(rid)


async def test_one_that_ended_well_has_nothing_to_explain(world: World) -> None:
    rid = await world.submit(1)
    await world.turn()
    world.cluster.servers[rid] = replace(world.cluster.servers[rid], phase=Phase.DEAD, run_end=RunEnd(0))
    await world.turn()
    row = await world.get(rid)
    assert (row.status, row.failure_reason) == (Status.EXPIRED, None)
