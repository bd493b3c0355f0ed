"""A start that failed, or papers that were damaged, cost one dev server a moment, and no other anything."""

from pathlib import Path

import pytest

from gpudev.adapters.local.machine.processes import ProcessIdentity
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.ports.cluster import ServerPhase, ServerSpec, ServerState
from support.local.local_world import LocalWorld

pytestmark = pytest.mark.slow


async def test_a_lost_one_that_is_being_started_again_is_never_seen_as_dead_for_good(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world.spec()
    await world.ready(spec)
    async with world.nobody_watching():
        await world.kill(spec.reservation_id)
    end, glimpses = world.cluster._stop_server, list[ServerState | None]()

    async def end_while_somebody_looks(server: object) -> bool:
        ended = await end(server)  # type: ignore[arg-type]
        glimpses.append(await world.seen(spec.reservation_id))
        return ended

    monkeypatch.setattr(world.cluster, "_stop_server", end_while_somebody_looks)
    await world.ready(spec)
    assert [seen and (seen.phase, seen.is_restartable) for seen in glimpses] == [(ServerPhase.DEAD, True)]


@pytest.mark.parametrize("error", [ClusterError("no process can be forked"), Unavailable("the zygote is away")])
async def test_a_start_that_failed_may_be_tried_again(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch, error: GpuDevError
) -> None:
    async def refuse(*_: object) -> ProcessIdentity | None:
        raise error

    spec = world.spec()
    with monkeypatch.context() as broken:
        broken.setattr(world.cluster._zygote, "spawn", refuse)
        with pytest.raises(type(error), match=str(error)):
            await world.cluster.ensure_server(spec)
    seen = await world.seen(spec.reservation_id)
    assert seen is not None
    assert (seen.phase, seen.is_restartable) == (ServerPhase.DEAD, True)
    assert str(error) in (seen.reason or "")
    await world.ready(spec)


@pytest.mark.parametrize("content", ["", '{"pid": 1'])
async def test_papers_cut_short_by_a_loss_of_power_hide_no_other_and_hold_nothing_for_ever(
    world: LocalWorld, content: str
) -> None:
    spec, other = world.spec(), world.spec()
    await world.ready(spec)
    well = await world.ready(other)
    async with world.nobody_watching():
        first = world.first_process(spec.reservation_id)
        await world.kill(spec.reservation_id)
        first.wait(10)
        for name in ("process.json", "ended.json", "launch.json"):
            (_papers(world, spec) / name).write_text(content)
    seen = (await world.cluster.observe()).servers
    assert seen[other.reservation_id] == well
    assert (seen[spec.reservation_id].phase, seen[spec.reservation_id].is_restartable) == (ServerPhase.DEAD, True)
    await world.ready(spec)
    (_papers(world, spec) / "launch.json").write_text(content)
    await world.gone(spec.reservation_id)


def _papers(world: LocalWorld, spec: ServerSpec) -> Path:
    return world.state_dir / "servers" / str(spec.reservation_id) / "members" / "0"
