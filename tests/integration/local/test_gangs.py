"""All members of a gang, or none."""

import os
from dataclasses import replace

import psutil
import pytest

from gpudev.adapters.local.machine.processes import is_alive
from gpudev.domain.errors import ClusterError, GpuDevError
from gpudev.ports.cluster import ServerPhase
from support.local.local_world import LocalWorld
from support.polling import eventually_async

pytestmark = pytest.mark.slow


async def test_when_one_member_cannot_start_the_others_are_taken_down(world: LocalWorld) -> None:
    spec = world.spec(nodes=3)
    blocked = world.cluster._state.server(spec.reservation_id).member(2)
    lock = blocked.take_lock()
    assert lock is not None
    with pytest.raises(GpuDevError):
        await world.cluster.ensure_server(spec)
    for rank in (0, 1):
        started = world.cluster._state.server(spec.reservation_id).member(rank).find_process()
        assert started is not None
        assert not is_alive(started)
    seen = await world.seen(spec.reservation_id)
    assert seen is not None
    assert seen.phase is ServerPhase.DEAD

    os.close(lock)
    await world.ready(spec)


async def test_when_one_member_dies_the_gang_is_dead_and_all_of_it_starts_anew(world: LocalWorld) -> None:
    spec = world.spec(nodes=2)
    await world.ready(spec)
    survivor = world.first_process(spec.reservation_id, rank=0)
    world.first_process(spec.reservation_id, rank=1).kill()
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert "member 1" in (seen.reason or "")
    await world.ready(spec)
    await eventually_async(lambda: not survivor.is_running() or survivor.status() == psutil.STATUS_ZOMBIE)


async def test_a_gang_on_a_node_that_is_not_there_leaves_nothing(world: LocalWorld) -> None:
    spec = world.spec(nodes=2)
    bad = replace(spec, shares=(spec.shares[0], replace(spec.shares[1], node="nowhere")))
    with pytest.raises(ClusterError, match="nowhere"):
        await world.cluster.ensure_server(bad)
    assert not (await world.cluster.observe()).servers
    assert not list((world.state_dir / "servers").iterdir())


async def test_a_gpu_in_use_is_not_given_twice(world: LocalWorld) -> None:
    first = world.spec()
    await world.ready(first)
    second = replace(world.spec(), shares=first.shares)
    with pytest.raises(ClusterError, match=first.pod_name):
        await world.cluster.ensure_server(second)
    await world.gone(first.reservation_id)
    await world.ready(second)
