"""A dev server on this machine ends itself with the command it was reserved for, and with no other."""

import asyncio
import os
import shlex
from pathlib import Path

import pytest

from gpudev.adapters.local.sshd.command_exit import EXIT_COMMAND_ENDED, CommandExitWatch
from gpudev.adapters.local.sshd.sshd_config import SshdConfig
from gpudev.domain.reservations.command_exit import CommandExit, parse_command_exit
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.sdk.remote import remote_commands
from support.local.local_world import MODES, LocalWorld

pytestmark = pytest.mark.slow
one_mode = pytest.mark.parametrize("mode", MODES[:1], indirect=True)


async def begin(world: LocalWorld, seen: ServerState, command: str, *, ends: bool = True) -> None:
    await world.out(seen, shlex.join(remote_commands.detached_command(".", [command], ends_reservation=ends)))


async def test_it_ends_with_the_command_and_says_how(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    session = world.open_session(seen, "echo in; sleep 1000")
    assert session.stdout is not None
    assert await asyncio.to_thread(session.stdout.readline) == b"in\n"
    await begin(world, seen, "printf '10%%\\r100%%\\n'; echo over; exit 3")
    ended = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert ended.command_exit == CommandExit(3, ("100%", "over"))
    assert await asyncio.to_thread(session.wait, 10) != 0
    session.communicate()


@one_mode
async def test_its_end_is_known_to_a_control_plane_that_did_not_see_it(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    first = world.first_process(spec.reservation_id)
    async with world.nobody_watching():
        await begin(world, seen, "true")
        await asyncio.to_thread(first.wait, 30)
    for _ in range(2):
        ended = await world.until(spec.reservation_id, ServerPhase.DEAD)
        assert ended.command_exit == CommandExit(0)
        async with world.nobody_watching():
            pass


async def test_a_command_that_is_killed_has_ended_also_when_the_ssh_server_was_too(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    stale = "mkdir ~/.gpu-dev-run; setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! >~/.gpu-dev-run/pid"
    await world.out(seen, stale)  # of an earlier life, and somebody else's by now
    await begin(world, seen, "echo up; sleep 1000")
    second = await world.ssh(seen, shlex.join(remote_commands.detached_command(".", ["true"], ends_reservation=False)))
    assert (second.returncode, second.stderr) == (75, "another detached command is still running\n")
    world.first_process(spec.reservation_id).children()[0].kill()
    assert await world.out(seen, "cat ~/.gpu-dev-run/output") == "up", "it is started again, and the command goes on"
    await world.out(seen, "kill -9 -$(cat ~/.gpu-dev-run/pid)")
    assert (await world.until(spec.reservation_id, ServerPhase.DEAD)).command_exit == CommandExit(None, ("up",))


@one_mode
async def test_whoever_follows_reads_it_to_the_end(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    await begin(world, seen, "echo up; until [ -e ~/go ]; do sleep 0.1; done; echo last; exit 9")
    following = world.open_session(seen, shlex.join(remote_commands.output_command(follow=True)))
    assert following.stdout is not None
    assert await asyncio.to_thread(following.stdout.readline) == b"up\n"
    await world.out(seen, "touch ~/go")
    written, _ = await asyncio.to_thread(following.communicate, timeout=60)
    assert (following.returncode, written) == (9, b"last\n")
    assert (await world.until(spec.reservation_id, ServerPhase.DEAD)).command_exit == CommandExit(9, ("up", "last"))


RESERVATION = "7f3c0d52-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("files", "is_over"),
    [
        ({"ends": RESERVATION, "exit": "0\n"}, True),
        ({"ends": RESERVATION, "pid": "1\n"}, True),
        ({"ends": RESERVATION, "pid": "no number"}, True),
        ({"exit": "0\n", "pid": "1\n"}, False),
        ({"ends": "", "exit": "0\n"}, False),
        ({"ends": "7f3c0d52-0000-4000-8000-000000000002", "exit": "0\n"}, False),
        ({}, False),
    ],
    ids=["ended", "number had by another", "no number", "it shall stay", "no name", "another's on this disk", "none"],
)
def test_it_stays_where_it_shall_and_where_another_reservation_left_its_marks(
    tmp_path: Path, files: dict[str, str], is_over: bool
) -> None:
    assert watch(tmp_path, files, report=0).has_ended() is is_over


def test_it_leaves_after_a_moment_and_tells_nothing_of_what_is_no_file_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    report = os.open(told, os.O_RDWR | os.O_CREAT)
    seen = watch(tmp_path, {"ends": RESERVATION, "exit": "9\n"}, report=report)
    (tmp_path / ".gpu-dev-run" / "output").symlink_to("/etc/passwd")
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    seen.check(100.0)
    seen.check(102.9)
    assert codes == []
    seen.check(103.0)
    os.close(report)
    assert codes == [EXIT_COMMAND_ENDED]
    assert parse_command_exit(told.read_bytes()) == CommandExit(9)


def watch(home: Path, files: dict[str, str], *, report: int) -> CommandExitWatch:
    (home / ".gpu-dev-run").mkdir()
    for name, text in files.items():
        (home / ".gpu-dev-run" / name).write_text(text)
    environment = {"GPU_DEV_RESERVATION_ID": RESERVATION}
    return CommandExitWatch(SshdConfig("", "", str(home), "", environment=environment, command_exit_report=report))
