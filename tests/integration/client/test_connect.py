"""`gpu-dev connect`: what it asks ssh to do, and that the real ssh does it without a question."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import asyncssh
import pytest

from gpudev.wire.reservations import JobView
from support.client.cli_process import Cli
from support.client.fake_api import HOST_KEY, FakeApi

pytestmark = pytest.mark.slow


@pytest.fixture
def ssh_log(tmp_path: Path, cli: Cli) -> Path:
    """A program called ssh that writes down how it was called, and ends with 42."""
    folder, log = tmp_path / "bin", tmp_path / "ssh.json"
    folder.mkdir()
    program = folder / "ssh"
    script = f"import json, pathlib, sys; pathlib.Path({str(log)!r}).write_text(json.dumps(sys.argv[1:])); sys.exit(42)"
    # Not named in its first line: there, a path with a space is none.
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", script])} "$0" "$@"\n')
    program.chmod(0o755)
    cli.env["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return log


def called(log: Path) -> list[str]:
    arguments: list[str] = json.loads(log.read_text())
    return arguments


def values(arguments: list[str], flag: str) -> list[str]:
    return [value for before, value in pairwise(arguments) if before == flag]


def options(arguments: list[str]) -> dict[str, str]:
    """The -o options."""
    return dict(pair.split("=", 1) for pair in values(arguments, "-o"))


def test_it_becomes_ssh_with_the_host_key_the_api_gave(cli: Cli, api: FakeApi, home: Path, ssh_log: Path) -> None:
    job = api.add(status="active")
    done = cli.run("connect", job.reservation_id[:8])
    assert done.returncode == 42, "ssh's own exit code"
    assert done.stderr == ""
    arguments = called(ssh_log)
    assert arguments[-2:] == ["--", "dev@127.0.0.1"]
    assert arguments[arguments.index("-p") + 1] == "31234"
    alias = f"gpu-dev-{job.reservation_id[:8]}"
    known_hosts = home / ".gpu-dev" / "known_hosts.d" / job.reservation_id
    assert options(arguments) | {"HostKeyAlias": alias, "StrictHostKeyChecking": "yes"} == options(arguments)
    assert options(arguments)["UserKnownHostsFile"] == f'"{known_hosts}"'
    assert known_hosts.read_text() == f"{alias} {HOST_KEY}\n"
    assert (home / ".gpu-dev").stat().st_mode & 0o077 == 0


def test_without_a_key_of_its_own_it_leaves_the_choice_of_keys_to_ssh(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    api.add(status="active")
    cli.run("connect")
    assert "IdentityFile" not in options(called(ssh_log))


def test_its_own_key_comes_first_and_the_persons_keys_after(cli: Cli, api: FakeApi, home: Path, ssh_log: Path) -> None:
    api.add(status="active")
    (home / ".gpu-dev").mkdir()
    (home / ".gpu-dev" / "id_ed25519").write_text("a private key")
    for name in ("id_ed25519", "id_rsa", "work", "work.pub", "other.pub"):
        (home / ".ssh" / name).touch()
    cli.run("connect")
    named = [value for value in values(called(ssh_log), "-o") if value.startswith("IdentityFile=")]
    first, *others = [value.removeprefix("IdentityFile=").strip('"') for value in named]
    assert first == str(home / ".gpu-dev" / "id_ed25519")
    assert sorted(others) == [str(home / ".ssh" / name) for name in ("id_ed25519", "id_rsa", "work")]


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        (["nvidia-smi"], "nvidia-smi"),
        (["cd project && make"], "cd project && make"),
        (["nvidia-smi", "-L"], "nvidia-smi -L"),
        (["echo", "two words", "$HOME", "it's"], "echo 'two words' '$HOME' 'it'\"'\"'s'"),
        (["--help"], "--help"),
        (["-v", "--json"], "-v --json"),
        (["a", "--", "b"], "a -- b"),
    ],
)
def test_one_argument_is_a_line_and_several_are_an_argv(
    cli: Cli, api: FakeApi, ssh_log: Path, command: list[str], sent: str
) -> None:
    job = api.add(status="active")
    for before in ([], [job.reservation_id[:8]]):
        cli.run("connect", *before, "--", *command)
        assert called(ssh_log)[-3:] == ["--", "dev@127.0.0.1", sent]


def test_a_terminal_is_asked_for_only_where_there_is_one(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    api.add(status="active")
    cli.run("connect", "--", "top")
    assert "-t" not in called(ssh_log)
    with cli.terminal("connect", "--", "top") as terminal:
        assert terminal.wait() == 42
    assert "-t" in called(ssh_log)


def test_a_home_with_odd_signs_still_works(cli: Cli, api: FakeApi, tmp_path: Path, ssh_log: Path) -> None:
    cli.home = tmp_path / "100% odd home"
    cli.home.mkdir()
    api.add(status="active")
    assert cli.run("connect").returncode == 42
    assert options(called(ssh_log))["UserKnownHostsFile"].startswith(f'"{tmp_path}/100%% odd home/')


def test_host_keys_of_long_ago_are_forgotten(cli: Cli, api: FakeApi, home: Path, ssh_log: Path) -> None:
    folder = home / ".gpu-dev" / "known_hosts.d"
    folder.mkdir(parents=True)
    old, recent = folder / "old", folder / "recent"
    for path, days in ((old, 90), (recent, 1)):
        path.touch()
        os.utime(path, (time.time() - days * 86400,) * 2)
    api.add(status="active")
    cli.run("connect")
    assert not old.exists()
    assert recent.exists()


def test_it_waits_for_a_dev_server_that_is_not_ready_yet(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    job = api.add(status="queued", queue_position=1)
    process = cli.start("connect", job.reservation_id[:8], "--", "cat", "data")
    api.wait_for(lambda: bool(api.requests("GET", "/events")), "it waits")
    assert not ssh_log.exists()
    api.activate(job.reservation_id)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 42
    assert output == "", "what the command writes is all there is"


def test_it_shows_the_countdown_to_somebody_at_a_terminal(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    job = api.add(status="queued", queue_position=1)
    with cli.terminal("connect") as terminal:
        terminal.wait_for("position 1 in the queue")
        api.activate(job.reservation_id)
        assert terminal.wait() == 42
    assert ssh_log.exists()


def test_an_interrupt_while_it_waits_leaves_the_reservation(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    job = api.add(status="queued")
    process = cli.start("connect")
    api.wait_for(lambda: bool(api.requests("GET", "/events")), "it waits")
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"gpu-dev cancel {job.reservation_id[:8]}" in complaint


def test_no_wait_says_that_it_is_not_ready(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    api.add(status="preparing", step="mounting the disk")
    done = cli.run("connect", "--no-wait")
    assert done.returncode == 5
    assert "mounting the disk" in done.stderr
    assert not ssh_log.exists()


def test_a_reservation_that_fails_while_it_waits_ends_it(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    job = api.add(status="queued")
    process = cli.start("connect")
    api.wait_for(lambda: bool(api.requests("GET", "/events")), "it waits")
    api.change(job.reservation_id, status="failed", failure_reason="no disk")
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == 6
    assert "no disk" in complaint


@pytest.mark.parametrize("status", ["expired", "cancelled", "failed"])
def test_what_has_ended_cannot_be_connected_to(cli: Cli, api: FakeApi, ssh_log: Path, status: str) -> None:
    job = api.add(status=status)
    done = cli.run("connect", job.reservation_id)
    assert done.returncode == 5
    assert "gpu-dev reserve" in done.stderr


def test_without_ssh_it_says_what_to_install(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    api.add(status="active")
    done = cli.run("connect", env={"PATH": str(tmp_path)})
    assert done.returncode == 8
    assert "openssh-client" in done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"ssh_host_key": None},
        {"ssh_host_key": "ssh-ed25519 AAAA\nevil ssh-rsa BBBB"},
        {"node_ip": "-oProxyCommand=evil"},
        {"node_ip": None},
        {"node_port": 0},
        {"ssh_user": "-evil"},
        {"ssh_user": None},
    ],
    ids=str,
)
def test_what_the_api_says_is_checked_before_it_becomes_a_command_line(
    cli: Cli, api: FakeApi, ssh_log: Path, changes: dict[str, object]
) -> None:
    job = api.add(status="active")
    api.change(job.reservation_id, **changes)
    done = cli.run("connect")
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1
    assert not ssh_log.exists()


class _EchoServer(asyncssh.SSHServer):
    """Lets one key in."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        self._key = key

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "dev" and key.public_data == self._key.public_data


@pytest.fixture
def real_ssh(cli: Cli, api: FakeApi, home: Path) -> Iterator[JobView]:
    """An active reservation whose ssh server answers every command with what it was asked; HOME holds the key."""
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh client here")
    host_key, user_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    (home / ".gpu-dev").mkdir(mode=0o700)
    private = home / ".gpu-dev" / "id_ed25519"
    private.write_bytes(user_key.export_private_key())
    private.chmod(0o600)

    async def answer(process: "asyncssh.SSHServerProcess[str]") -> None:
        process.stdout.write(f"asked: {process.command}\n")
        process.exit(7)

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncssh.create_server(
            lambda: _EchoServer(user_key), "127.0.0.1", 0, server_host_keys=[host_key], process_factory=answer
        )
    )
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    job = api.add()
    public = host_key.export_public_key().decode().strip()
    yield api.activate(job.reservation_id, port=server.get_port(), host_key=public)
    loop.call_soon_threadsafe(server.close)
    asyncio.run_coroutine_threadsafe(server.wait_closed(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_the_real_ssh_connects_without_a_question(cli: Cli, real_ssh: JobView) -> None:
    done = cli.run("connect", real_ssh.reservation_id[:8], "--", "echo", "two words")
    assert (done.returncode, done.stdout) == (7, "asked: echo 'two words'\n"), done.stderr
    assert done.stderr == ""


def test_the_real_ssh_finds_everything_in_a_home_with_odd_signs(cli: Cli, home: Path, real_ssh: JobView) -> None:
    cli.home = home.rename(home.with_name("100% [odd] h\u00f6me"))
    done = cli.run("connect", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (7, "asked: true\n", "")
    assert cli.run("ssh-config").returncode == 0
    name = f"gpu-dev-{real_ssh.reservation_id[:8]}"
    command = ["ssh", "-F", str(cli.home / ".ssh" / "config"), name, "true"]
    by_name = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (by_name.returncode, by_name.stdout) == (7, "asked: true\n"), by_name.stderr


def test_the_real_ssh_refuses_a_host_with_another_key(cli: Cli, api: FakeApi, real_ssh: JobView) -> None:
    api.change(real_ssh.reservation_id, ssh_host_key=HOST_KEY)
    done = cli.run("connect", "--", "true")
    assert done.returncode == 255
    assert done.stdout == ""
    assert "verification failed" in done.stderr.lower()
