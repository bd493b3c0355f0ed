"""Which way a command takes to a dev server, and what it makes of ports and paths."""

import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import FakeApi
from support.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def log(tmp_path: Path, cli: Cli) -> Path:
    """Programs called ssh and scp that write down how they were called."""
    folder, log = tmp_path / "bin", tmp_path / "called.json"
    folder.mkdir()
    script = f"import json, pathlib, sys; pathlib.Path({str(log)!r}).write_text(json.dumps(sys.argv[1:]))"
    for name in ("ssh", "scp"):
        program = folder / name
        # Not named in its first line: there, a path with a space is none.
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", script])} "$0" "$@"\n')
        program.chmod(0o755)
    cli.env["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return log


@pytest.fixture
def greeting() -> Iterator[tuple[str, int]]:
    """An ssh server of which nothing is known but that it greets; not on the usual loopback address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                line.sendall(b"SSH-2.0-test\r\n")

    thread = threading.Thread(target=greet, daemon=True)
    thread.start()
    yield "0.0.0.0", listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def proxy_of(log: Path) -> str | None:
    """The proxy command ssh was given; "none" stands for none, whatever else ssh is told elsewhere."""
    arguments: list[str] = json.loads(log.read_text())
    options = dict(value.split("=", 1) for flag, value in pairwise(arguments) if flag == "-o")
    command = options.get("ProxyCommand")
    return None if command == "none" else command


def test_on_this_machine_the_way_is_straight(cli: Cli, api: FakeApi, log: Path) -> None:
    api.add(status="active")
    cli.run("connect")
    assert proxy_of(log) is None


def test_one_that_greets_is_reached_straight(cli: Cli, api: FakeApi, log: Path, greeting: tuple[str, int]) -> None:
    job = api.add(status="active")
    api.change(job.reservation_id, node_ip=greeting[0], node_port=greeting[1])
    cli.run("connect")
    assert proxy_of(log) is None
    cli.run("connect", "--proxy")
    assert f"proxy-command --api-url {api.url} {job.reservation_id}" in (proxy_of(log) or "")
    assert json.loads(log.read_text())[-1] == f"dev@gpu-dev-{job.reservation_id[:8]}"


def test_one_that_cannot_be_reached_is_reached_through_the_api(cli: Cli, api: FakeApi, log: Path) -> None:
    job = api.add(status="active")
    with socket.socket() as nobody:  # bound, and nobody listens
        nobody.bind(("127.0.0.1", 0))
        api.change(job.reservation_id, node_ip="0.0.0.0", node_port=nobody.getsockname()[1], launched_at=None)
        cli.run("connect", "--", "true")
        assert "proxy-command" in (proxy_of(log) or "")
        cli.run("connect", "--direct", "--", "true")
        assert proxy_of(log) is None


def test_nobody_insists_on_both_ways(cli: Cli, api: FakeApi, log: Path) -> None:
    api.add(status="active")
    assert cli.run("connect", "--direct", "--proxy").returncode == 2


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("{here}", "127.0.0.1:{here}:127.0.0.1:{here}"),
        ("{here}:80", "127.0.0.1:{here}:127.0.0.1:80"),
        ("{here}:db.internal:5432", "127.0.0.1:{here}:db.internal:5432"),
    ],
)
def test_ports_come_to_this_machine_alone(cli: Cli, api: FakeApi, log: Path, given: str, taken: str) -> None:
    job = api.add(status="active")
    here = free_port()
    for arguments in (["connect", "--forward", given.format(here=here)], ["port-forward", given.format(here=here)]):
        cli.run(*arguments)
        called = json.loads(log.read_text())
        assert called[called.index("-L") + 1] == taken.format(here=here)
    assert "-N" in called
    cli.run("port-forward", job.reservation_id[:8], given.format(here=here), str(free_port()))
    assert json.loads(log.read_text()).count("-L") == 2


def test_a_port_that_somebody_has_here_is_told_before_anything_is_done(cli: Cli, api: FakeApi, log: Path) -> None:
    api.add(status="active")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in (["port-forward", f"{port}:80"], ["connect", "--forward", str(port)]):
            done = cli.run(*arguments)
            assert done.returncode == 8
            assert f"cannot use local port {port}: Address already in use. Use another one: " in done.stderr
            assert "http://" not in done.stderr
    assert not log.exists()


def test_an_id_without_a_port_is_asked_for_one(cli: Cli, api: FakeApi, log: Path) -> None:
    job = api.add(status="active")
    done = cli.run("port-forward", job.reservation_id)
    assert (done.returncode, log.exists()) == (2, False)
    assert "give a port" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["exec", "ls"],
        ["exec", "nvidia-smi", "-L"],
        ["connect", "3f2a9c1e", "ls"],
        ["run", "python", "train.py", "--lr"],
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_come_after_two_dashes_is_told_where_it_belongs(
    cli: Cli, api: FakeApi, log: Path, arguments: list[str]
) -> None:
    done = cli.run(*arguments)
    assert (done.returncode, log.exists()) == (2, False)
    assert "A command for the dev server comes after `--`" in done.stderr


def test_a_misspelt_option_is_no_command(cli: Cli, api: FakeApi) -> None:
    assert "comes after" not in cli.run("run", "--gpuz", "1", "--", "true").stderr


def test_of_several_each_is_named(cli: Cli, api: FakeApi, log: Path) -> None:
    first, second = api.add(status="active", name="train"), api.add(status="active")
    done = cli.run("connect")
    assert done.returncode == 2
    assert f"{first.reservation_id[:8]} (2 x a100, train)" in done.stderr
    assert f"{second.reservation_id[:8]} (2 x a100)" in done.stderr


@pytest.mark.parametrize("given", ["0", "65536", "x", "1:2:3:4", "8888:-oEvil:80", "8888:", ":80", "80 80"])
def test_what_is_no_port_is_not_given_to_ssh(cli: Cli, api: FakeApi, log: Path, given: str) -> None:
    api.add(status="active")
    assert cli.run("connect", "--forward", given).returncode == 2
    assert not log.exists()


def test_files_are_copied_there_or_back(cli: Cli, api: FakeApi, log: Path, home: Path) -> None:
    job = api.add(status="active")
    for name in ("one", "two:three", "-odd"):
        (home / name).touch()
    short = job.reservation_id[:8]
    cli.run("cp", "one", "./two:three", ":there/")
    assert json.loads(log.read_text())[-4:] == ["--", "one", "./two:three", "dev@127.0.0.1:there/"]
    cli.run("cp", f"{short}:out", f"{short}:log", ".")
    assert json.loads(log.read_text())[-4:] == ["--", "dev@127.0.0.1:out", "dev@127.0.0.1:log", "."]
    cli.run("cp", "--", "-odd", ":")
    assert json.loads(log.read_text())[-2:] == ["./-odd", "dev@127.0.0.1:."]


def test_what_is_not_here_is_said_before_a_dev_server_is_waited_for(cli: Cli, api: FakeApi, log: Path) -> None:
    api.add(status="queued")
    done = cli.run("cp", "nowhere", ":", timeout=20)
    assert (done.returncode, log.exists()) == (8, False)
    assert "no local file nowhere" in done.stderr


def test_a_target_with_a_slash_is_a_folder_that_is_made(cli: Cli, api: FakeApi, log: Path, home: Path) -> None:
    api.add(status="active")
    (home / "one").touch()
    ssh = log.parent / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nfor last; do :; done; echo "$last" >> {log.parent}/lines\nexit $SSH_ENDS_WITH\n')
    cli.run("cp", "one", ":my project/", env={"SSH_ENDS_WITH": "0"})
    assert (log.parent / "lines").read_text() == "mkdir -p -- 'my project/'\n"
    assert json.loads(log.read_text())[-1] == "dev@127.0.0.1:my project/"
    log.unlink()
    assert cli.run("cp", "one", ":a file/", env={"SSH_ENDS_WITH": "9"}).returncode == 9
    assert not log.exists()
    cli.run("cp", "one", ":two", env={"SSH_ENDS_WITH": "9"})
    assert json.loads(log.read_text())[-1] == "dev@127.0.0.1:two"


@pytest.mark.parametrize(
    "paths", [["one"], ["one", "two"], [":a", ":b"], ["a", ":b", "c"], ["x" * 64 + ":a", "b"]], ids=str
)
def test_what_cannot_be_copied_is_said(cli: Cli, api: FakeApi, log: Path, paths: list[str]) -> None:
    api.add(status="active")
    assert cli.run("cp", *paths).returncode == 2
    assert not log.exists()


def test_exec_is_for_scripts(cli: Cli, api: FakeApi, log: Path) -> None:
    api.add(status="active")
    assert cli.run("exec").returncode == 2
    cli.run("exec", "--", "nvidia-smi", "-L")
    called = json.loads(log.read_text())
    assert shlex.split(called[-1])[-2:] == ["nvidia-smi", "-L"]
    assert "-T" in called
    assert "BatchMode=yes" in called
