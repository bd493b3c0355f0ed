"""A dev server in a container ends itself with the command it was reserved for, and leaves word of how that ended."""

import json
import shlex
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from gpudev.adapters.kubernetes.observation.home_contents import LISTING_LINE_PREFIX, parse_contents
from gpudev.domain.reservations.command_exit import CommandExit, parse_command_exit
from gpudev.sdk.remote import remote_commands
from support.polling import eventually
from support.ssh.dev_server_container import Builder

pytestmark = pytest.mark.slow
RESERVATION = "7f3c0d52-0000-4000-8000-000000000001"


def test_exit_code_and_last_lines_are_told_and_everything_ends(builder: Builder) -> None:
    builder.write("environment", f"GPU_DEV_RESERVATION_ID={RESERVATION}\n")
    told = builder.folder / "termination-log"
    told.write_text("")
    told.chmod(0o666)
    inside = "/tmp/termination-log" if builder.root != Path("/") else str(told)
    server = builder.start("--last-words", inside)
    command = "echo up; (sleep 1000 &); until [ -e ~/go ]; do sleep 0.1; done; printf '10%%\\r100%%\\n'; exit 5"
    begun = server.ssh(shlex.join(remote_commands.detached_command(".", [command], ends_reservation=True)))
    assert begun.returncode == 0, begun.stderr
    following = server.start(shlex.join(remote_commands.output_command(follow=True)), stdout=PIPE, stdin=DEVNULL)
    assert following.stdout is not None
    assert following.stdout.readline() == b"up\n"
    assert server.ssh("touch ~/go").returncode == 0
    written, _ = following.communicate(timeout=60)
    assert (following.returncode, written) == (5, b"10%\r100%\n")
    assert server.process.wait(30) == 0
    assert parse_command_exit(told.read_text()) == CommandExit(5, ("up", "100%"))
    assert len(json.dumps(told.read_text())) < 4096
    [listed] = [line for line in server.log.read_text().splitlines() if line.startswith(LISTING_LINE_PREFIX)]
    contents = parse_contents(listed.removeprefix(LISTING_LINE_PREFIX).encode())
    assert contents.is_counted
    assert ".gpu-dev-run/output" in {entry.path for entry in contents.entries}


def test_one_that_cannot_say_so_stays(builder: Builder) -> None:
    builder.write("environment", f"GPU_DEV_RESERVATION_ID={RESERVATION}\n")
    server = builder.start("--last-words", "/nowhere/at-all")
    assert (
        server.ssh(shlex.join(remote_commands.detached_command(".", ["true"], ends_reservation=True))).returncode == 0
    )
    eventually(lambda: "command_exit.not_reported" in server.log.read_text())
    assert server.ssh("echo here").stdout == b"here\n"
