"""What people bring to a dev server on this machine: variables, dotfiles, a start-up script."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpudev.adapters.local.machine.processes import find_processes_by_variable
from gpudev.ports.cluster import ServerPhase, ServerSpec, ServerState
from support.local.local_world import MODES, LocalWorld
from support.polling import eventually_async
from support.sessions.dotfiles_server import URL, DotfilesServer, serve_dotfiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine to clone with"),
]

SECRET = "planted 4711 $HOME `id`\nand a second line"


@pytest.fixture
def dotfiles(tmp_path: Path) -> Iterator[DotfilesServer]:
    with serve_dotfiles(tmp_path) as server:
        yield server


async def settled(world: LocalWorld, spec: ServerSpec) -> ServerState:
    """Once it has been told what became of the set-up."""
    await world.ready(spec)

    async def is_settled() -> ServerState | None:
        seen = await world.seen(spec.reservation_id)
        assert seen is not None
        return seen if seen.setup_outcome is not None and "running" not in seen.setup_outcome else None

    return await eventually_async(is_settled, every=0.05)


async def test_all_of_it_is_done_as_the_user_with_the_variables_to_the_letter(
    world: LocalWorld, dotfiles: DotfilesServer
) -> None:
    dotfiles.publish(
        {"install.sh": '#!/bin/sh\ncp bashrc ~/.bashrc_of_mine && id -u > ~/installed-by\nprintf "%s" "$PIN"\n'}
    )
    dotfiles.publish({"bashrc": "alias gpu=nvidia-smi\n"})
    script = "#!/bin/sh\nprintf '%s' \"$PIN\" > ~/pin\npwd > ~/where\ntest ! -t 0\n"
    spec = replace(
        world.spec(), environment={**dotfiles.environment, "PIN": SECRET}, dotfiles=URL, startup_script=script
    )
    seen = await settled(world, spec)
    assert seen.setup_outcome == "dotfiles: cloned; install.sh: done; start-up script: done"
    assert await world.out(seen, "cat ~/.bashrc_of_mine") == "alias gpu=nvidia-smi"
    assert await world.out(seen, "cat ~/pin") == SECRET
    assert await world.out(seen, 'printf %s "$PIN"') == SECRET
    assert await world.out(seen, "cat ~/where") == await world.out(seen, "cd && pwd -P")
    assert await world.out(seen, "cat ~/installed-by") == await world.out(seen, "id -u")
    log = await world.out(seen, "stat -c %a ~/.cache/gpu-dev/setup.log; cat ~/.cache/gpu-dev/setup.log")
    assert log == f"600\n{SECRET}"


async def test_nothing_of_a_secret_is_among_arguments_or_open_to_others(world: LocalWorld) -> None:
    script = f"#!/bin/sh\n# {SECRET.splitlines()[0]}\nsleep 60\n"
    spec = replace(world.spec(), environment={"PIN": SECRET}, startup_script=script)
    await world.ready(spec)
    (sleeping,) = await asyncio.to_thread(_wait_for_sleeper, world, spec)
    ours = [sleeping, *sleeping.parents()]
    assert not [process for process in ours if "4711" in " ".join(process.cmdline())]
    holding = [path for path in world.state_dir.rglob("*") if path.is_file() and b"4711" in path.read_bytes()]
    assert holding, "the planted secret must be found where it belongs"
    assert not [path for path in holding if path.stat().st_mode & 0o077]
    assert spec.startup_script is not None
    assert "4711" not in repr(spec)


def _wait_for_sleeper(world: LocalWorld, spec: ServerSpec) -> list[psutil.Process]:
    first = world.first_process(spec.reservation_id)
    for _ in range(600):
        found = [child for child in first.children(recursive=True) if child.name() == "sleep"]
        if found:
            return found
        psutil.wait_procs([first], timeout=0.05)
    raise AssertionError("the start-up script did not start")


SCRIPTS = {
    "exit 3": "start-up script: ended with 3 (~/.cache/gpu-dev/setup.log has more)",
    "kill -9 $$": "start-up script: was killed by signal 9 (~/.cache/gpu-dev/setup.log has more)",
    "#!/nonexistent/interpreter\n": "start-up script: could not be started (No such file or directory)",
    "sleep 300 >/dev/null 2>&1 & echo started": "start-up script: done",
}


async def test_a_script_that_fails_is_told_and_the_dev_server_goes_on(world: LocalWorld) -> None:
    specs = [replace(world.spec(), startup_script=script) for script in SCRIPTS]
    all_seen = await asyncio.gather(*(settled(world, spec) for spec in specs))
    for spec, seen, told in zip(specs, all_seen, SCRIPTS.values(), strict=True):
        assert seen.setup_outcome is not None
        assert seen.setup_outcome.startswith(told)
        assert await world.out(seen, "echo here") == "here"
        running = [
            psutil.Process(one.pid)
            for one in find_processes_by_variable("GPU_DEV_RESERVATION_ID", str(spec.reservation_id))
        ]
        assert ("sleep" in [process.name() for process in running]) == ("sleep" in (spec.startup_script or ""))


@pytest.mark.parametrize("mode", MODES[:1], indirect=True)
async def test_a_repository_that_cannot_be_cloned_is_told_and_leaves_nothing(
    world: LocalWorld, dotfiles: DotfilesServer
) -> None:
    spec = replace(world.spec(), environment=dotfiles.environment, dotfiles=URL, startup_script="touch ~/ran")
    seen = await settled(world, spec)
    assert seen.setup_outcome == (
        "dotfiles: git clone ended with 128; start-up script: done (~/.cache/gpu-dev/setup.log has more)"
    )
    assert await world.out(seen, "ls -A ~ | grep -e dotfiles -e ran") == "ran"


@pytest.mark.parametrize("mode", MODES[:1], indirect=True)
async def test_the_next_time_the_clone_is_brought_up_to_date_and_what_is_something_else_stays(
    world: LocalWorld, dotfiles: DotfilesServer
) -> None:
    dotfiles.publish({"install.sh": "#!/bin/sh\necho once >> ~/installs\n", "vimrc": "old"})
    spec = replace(world.spec(), environment=dotfiles.environment, dotfiles=URL)
    await settled(world, spec)
    dotfiles.publish({"vimrc": "new"})
    seen = await started_again(world, spec)
    assert seen.setup_outcome == "dotfiles: up to date; install.sh: done"
    assert await world.out(seen, "cat ~/.dotfiles/vimrc ~/installs") == "newonce\nonce"
    await world.out(seen, "git -C ~/.dotfiles config remote.origin.url https://git.example.com/other")
    assert "stays as it is" in ((await started_again(world, spec)).setup_outcome or "")


async def started_again(world: LocalWorld, spec: ServerSpec) -> ServerState:
    await world.kill(spec.reservation_id)
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    return await settled(world, spec)


@pytest.mark.parametrize("mode", MODES[:1], indirect=True)
async def test_a_control_plane_that_comes_later_learns_what_became_of_it(world: LocalWorld) -> None:
    spec = replace(world.spec(), startup_script="while ! test -e ~/go; do sleep 0.1; done; exit 5")
    seen = await world.ready(spec)
    async with world.nobody_watching():
        pass
    again = await world.seen(spec.reservation_id)
    assert again is not None
    await world.out(seen, "touch ~/go")
    assert "ended with 5" in ((await settled(world, spec)).setup_outcome or "")
