"""Dev servers outlive whoever started them, and nothing outlives a dev server."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.servers.state_folder import ServerRecord, server_record_to_json
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import new_disk_id
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase, ServerSpec
from support.local.local_world import ONLY_LINUX, LocalWorld, tagged
from support.local.world_folders import new_folder
from support.paths import SUPPORT
from support.polling import eventually_async

pytestmark = pytest.mark.slow
SCRIPTS = SUPPORT / "local"


async def leave_nasty_processes(world: LocalWorld, seen: object) -> str:
    tag = str(secrets.randbelow(10**9) + 10**9)
    await world.out(seen, f"python3 - {tag}", stdin=(SCRIPTS / "stubborn_processes.py").read_bytes())  # type: ignore[arg-type]
    assert len(tagged(tag)) >= 4
    return tag


@ONLY_LINUX  # elsewhere who detaches and throws its environment away cannot be told from anybody else
async def test_at_the_end_every_process_is_gone_however_it_resists(world: LocalWorld) -> None:
    spec = world.spec()
    tag = await leave_nasty_processes(world, await world.ready(spec))
    await world.gone(spec.reservation_id)
    assert not tagged(tag)


@ONLY_LINUX
async def test_before_it_starts_anew_every_process_of_its_first_run_is_gone(world: LocalWorld) -> None:
    spec = world.spec(nodes=2)
    tag = await leave_nasty_processes(world, await world.ready(spec))
    world.first_process(spec.reservation_id, rank=1).kill()
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    await world.ready(spec)
    assert not tagged(tag)


async def test_open_sessions_end_with_it(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    session = world.open_session(seen, "echo in; sleep 1000")
    assert session.stdout is not None
    assert await asyncio.to_thread(session.stdout.readline) == b"in\n"
    await world.gone(spec.reservation_id)
    assert await asyncio.to_thread(session.wait, 10) != 0
    session.communicate()


async def test_the_folder_goes_and_the_disk_stays(world: LocalWorld) -> None:
    disk = new_disk_id()
    spec = world.spec(disk_id=disk, disk_name="work")
    seen = await world.ready(spec)
    await world.out(seen, "echo kept > ~/kept; echo lost > $WORKSPACE/lost; mkdir ~/locked; chmod 0 ~/locked")
    await world.gone(spec.reservation_id)
    await eventually_async(lambda: not list((world.state_dir / "trash").iterdir()))
    assert not list((world.state_dir / "servers").iterdir())
    assert (world.state_dir / "disks" / str(disk) / "kept").read_text() == "kept\n"

    again = await world.ready(world.spec(disk_id=disk, disk_name="work"))
    assert await world.out(again, "cat ~/kept; ls $WORKSPACE") == "kept"


async def test_scratch_is_removed_even_where_a_user_locked_folders(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    await world.out(seen, "mkdir -p ~/a/b && touch ~/a/b/c && chmod 0 ~/a/b && chmod 0 ~/a; ln -s / ~/everything")
    await world.gone(spec.reservation_id)
    await eventually_async(lambda: not list((world.state_dir / "trash").iterdir()))


async def test_it_serves_again_after_its_user_killed_everything(world: LocalWorld, mode: IsolationMode) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    if mode is IsolationMode.PLAIN:  # all of that user's processes would be those of whoever runs the tests, too
        world.first_process(spec.reservation_id).children()[0].kill()
    else:
        assert (await world.ssh(seen, "kill -9 -1")).returncode != 0
    assert await world.out(seen, "echo again") == "again"
    assert await world.seen(spec.reservation_id) == seen


async def test_signals_from_inside_do_not_reach_its_first_process(world: LocalWorld, mode: IsolationMode) -> None:
    if mode is IsolationMode.PLAIN:
        pytest.skip("nothing keeps processes of one uid apart in plain folders")
    spec = world.spec()
    seen = await world.ready(spec)
    first = world.first_process(spec.reservation_id)
    pid = 1 if mode.has_namespaces else first.pid
    await world.ssh(seen, f"kill -9 {pid}; kill -STOP {pid}; kill {pid}")
    assert await world.out(seen, "echo still") == "still"
    assert first.is_running()


async def test_orphans_are_collected(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    await world.out(seen, "for i in $(seq 20); do (sleep 0.05 &) ; done; sleep 0.3")
    first = world.first_process(spec.reservation_id)
    await eventually_async(lambda: not [p for p in first.children() if p.status() == psutil.STATUS_ZOMBIE])


async def test_the_reason_names_the_signal_and_the_last_words(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    sshd = world.first_process(spec.reservation_id).children()[0]
    sshd.kill()
    assert await world.out(seen, "echo back") == "back"
    await world.kill(spec.reservation_id)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert seen.reason is not None
    assert "SIGKILL" in seen.reason.splitlines()[0]
    assert "ssh server" in seen.reason.splitlines()[-1]


async def test_it_outlives_the_warm_process_which_comes_back(world: LocalWorld) -> None:
    first = await world.ready(world.spec())
    warm = world.cluster._zygote.pid
    assert warm is not None
    os.kill(warm, signal.SIGKILL)
    await eventually_async(lambda: world.cluster._zygote.pid not in (None, warm))
    assert await world.out(first, "echo one") == "one"
    assert await world.out(await world.ready(world.spec()), "echo two") == "two"


async def test_a_start_in_the_moment_the_warm_process_dies_is_not_lost(world: LocalWorld) -> None:
    for _ in range(3):
        spec = world.spec()
        asking = asyncio.ensure_future(world.cluster.ensure_server(spec))
        await asyncio.sleep(0.01)  # into the middle of the start
        if (warm := world.cluster._zygote.pid) is not None:
            os.kill(warm, signal.SIGKILL)
        try:
            await asking
        except Unavailable:  # said so: asking again is right
            await world.cluster.ensure_server(spec)
        await world.until(spec.reservation_id, ServerPhase.READY)
    assert len((await world.cluster.observe()).servers) == 3


async def test_closing_while_the_warm_process_is_started_again_leaves_none_behind(mode: IsolationMode) -> None:
    for wait in (0.0, 0.02, 0.1):
        async with LocalWorld(SystemClock(), mode, folder=new_folder()) as world:  # its warm process is nobody else's
            warm = world.cluster._zygote.pid
            assert warm is not None
            os.kill(warm, signal.SIGKILL)
            await asyncio.sleep(wait)  # leaving looks for processes that were left behind


async def test_a_caller_who_stops_waiting_leaves_no_half_started_server(world: LocalWorld) -> None:
    spec = world.spec()
    asking = asyncio.ensure_future(world.cluster.ensure_server(spec))
    await asyncio.sleep(0.005)  # into the middle of the start
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await world.until(spec.reservation_id, ServerPhase.READY)


async def test_a_killed_control_plane_takes_nothing_with_it(mode: IsolationMode) -> None:
    async with LocalWorld(SystemClock(), mode) as world:
        spec = world.spec()
        plane = start_control_plane(world)
        assert await answer(plane) == "started"
        say(plane, spec)
        assert await answer(plane) == "asked"
        assert await answer(plane) == "ready"
        seen = (await world.cluster.observe()).servers[spec.reservation_id]
        session = world.open_session(seen, "cat")
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(b"before\n")
        assert await asyncio.to_thread(session.stdout.readline) == b"before\n"
        plane.kill()
        plane.communicate()

        async with world.nobody_watching():
            pass
        session.stdin.write(b"after\n")
        assert await asyncio.to_thread(session.stdout.readline) == b"after\n"
        session.communicate()
        assert await world.seen(spec.reservation_id) == seen
        assert await world.out(seen, "echo found") == "found"


async def test_a_control_plane_killed_while_it_starts_one_leaves_a_state_that_can_be_repaired(
    mode: IsolationMode,
) -> None:
    async with LocalWorld(SystemClock(), mode) as world:
        specs = [world.spec() for _ in range(3)]
        for spec, delay in zip(specs, (0.004, 0.015, None), strict=True):
            plane = start_control_plane(world)
            assert await answer(plane) == "started"
            say(plane, spec)
            if delay is None:
                assert await answer(plane) == "asked"
            else:
                await asyncio.sleep(delay)  # killed at different points of the start
            plane.kill()
            plane.communicate()
        async with world.nobody_watching():
            pass
        for spec in specs:
            assert (await world.ready(spec)).connection
        assert len((await world.cluster.observe()).servers) == 3
        assert all(world.first_process(spec.reservation_id).is_running() for spec in specs)


async def test_after_a_reboot_it_is_lost_unwatched_and_starts_again_as_it_was(world: LocalWorld) -> None:
    spec = replace(world.spec(), disk_id=new_disk_id(), disk_name="work")
    before = await world.ready(spec)
    await world.out(before, "echo written > ~/before; echo too > $WORKSPACE/before")
    async with world.nobody_watching():
        first = world.first_process(spec.reservation_id)
        first.kill()
        await eventually_async(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)
        papers = world.state_dir / "servers" / str(spec.reservation_id) / "members" / "0" / "process.json"
        # The same pid exists after the reboot, too: it is somebody else's.
        papers.write_text(json.dumps({**json.loads(papers.read_text()), "pid": os.getpid(), "boot": "another"}))
    seen = await world.seen(spec.reservation_id)
    assert seen is not None
    assert seen.phase is ServerPhase.DEAD
    assert seen.is_restartable
    assert "restarted" in (seen.reason or "")

    after = await world.ready(spec)
    assert after.connection == before.connection
    assert await world.out(after, "cat ~/before $WORKSPACE/before") == "written\ntoo"


async def test_a_death_that_was_watched_stays_watched_after_the_control_plane_changes(world: LocalWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    await world.kill(spec.reservation_id)
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    async with world.nobody_watching():
        pass
    seen = await world.seen(spec.reservation_id)
    assert seen is not None
    assert seen.phase is ServerPhase.DEAD
    assert not seen.is_restartable


async def test_papers_that_cannot_be_read_show_a_dead_server_that_can_be_removed(world: LocalWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    first = world.first_process(spec.reservation_id)
    async with world.nobody_watching():
        (world.state_dir / "servers" / str(spec.reservation_id) / "record.json").write_text("{")
    seen = await world.seen(spec.reservation_id)
    assert seen is not None
    assert seen.phase is ServerPhase.DEAD
    await world.gone(spec.reservation_id)
    await eventually_async(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)


def start_control_plane(world: LocalWorld) -> "subprocess.Popen[str]":
    assert world.mode is not None
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / "control_plane_process.py"), str(world.state_dir), world.mode.value],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def say(plane: "subprocess.Popen[str]", spec: ServerSpec) -> None:
    assert plane.stdin is not None
    plane.stdin.write(json.dumps(json.loads(server_record_to_json(ServerRecord(spec, (), None)))) + "\n")


async def answer(plane: "subprocess.Popen[str]") -> str:
    assert plane.stdout is not None
    return (await asyncio.to_thread(plane.stdout.readline)).strip()


async def test_one_whose_folders_were_only_half_prepared_is_lost_unwatched(world: LocalWorld) -> None:
    spec = world.spec()
    async with world.nobody_watching():
        (world.state_dir / "servers" / str(spec.reservation_id) / "run").mkdir(parents=True)
    seen = await world.seen(spec.reservation_id)
    assert seen is not None
    assert seen.phase is ServerPhase.DEAD
    assert seen.is_restartable
    await world.ready(spec)


async def test_stopping_all_of_them_is_like_a_shutdown_of_the_machine(world: LocalWorld) -> None:
    spec, dead = world.spec(), world.spec()
    before = await world.ready(spec)
    await world.ready(dead)
    await world.kill(dead.reservation_id)
    await world.until(dead.reservation_id, ServerPhase.DEAD)
    assert await world.cluster.stop_servers() == 1
    # Killed with its first process, an ssh server may need a moment more than that to be gone.
    await eventually_async(
        lambda: all(process.pid == world.cluster._zygote.pid for process in tagged(str(world.state_dir)))
    )
    async with world.nobody_watching():
        pass
    seen = await world.seen(spec.reservation_id)
    assert seen is not None
    assert seen.is_restartable
    assert (await world.ready(spec)).connection == before.connection
