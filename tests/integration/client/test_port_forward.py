"""`gpu-dev port-forward`: what is an id and what is a port, and its normal end."""

import json
import os
import shlex
import signal
import socket
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import FakeApi
from support.polling import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def ssh_log(tmp_path: Path, cli: Cli) -> Path:
    """A program called ssh that writes down how it was called, and runs until it is ended."""
    folder, log = tmp_path / "bin", tmp_path / "ssh.json"
    folder.mkdir()
    script = (
        "import json, pathlib, signal, sys\n"
        f"pathlib.Path({str(log)!r}).write_text(json.dumps(sys.argv[1:]))\n"
        "signal.pause()"
    )
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", script])} "$0" "$@"\n')
    (folder / "ssh").chmod(0o755)
    cli.env["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return log


def forwarded(cli: Cli, log: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit code after Ctrl-C, and how ssh was called."""
    with cli.start("port-forward", *arguments) as process:
        eventually(log.exists, "ssh was not started", within=30)
        eventually(lambda: bool(log.read_text()), "ssh wrote nothing", within=10)
        process.send_signal(signal.SIGINT)
        code = process.wait(30)
    called: list[str] = json.loads(log.read_text())
    return code, [value for before, value in pairwise(called) if before == "-L"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_ctrl_c_is_the_normal_end(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    api.add(status="active")
    port = free_port()
    assert forwarded(cli, ssh_log, str(port)) == (0, [f"127.0.0.1:{port}:127.0.0.1:{port}"])


def test_digits_that_begin_a_live_id_are_the_id_where_ports_follow(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    api.add(status="active", reservation_id="34341111-0000-4000-8000-000000000000")
    api.add(status="active")
    port = free_port()
    code, forwards = forwarded(cli, ssh_log, "3434", f"{port}:80")
    assert (code, forwards) == (0, [f"127.0.0.1:{port}:127.0.0.1:80"])


def test_other_digits_are_a_port(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    api.add(status="active", reservation_id="abcd1111-0000-4000-8000-000000000000")
    first, second = free_port(), free_port()
    _, forwards = forwarded(cli, ssh_log, str(first), str(second))
    assert len(forwards) == 2


def test_a_name_stands_before_the_ports(cli: Cli, api: FakeApi, ssh_log: Path) -> None:
    for name in ("one", "two"):
        api.add(status="active", name=name)
    code, forwards = forwarded(cli, ssh_log, "two", str(free_port()))
    assert (code, len(forwards)) == (0, 1)


def test_a_port_that_is_taken_on_this_machine_may_be_the_dev_servers_own(cli: Cli, api: FakeApi) -> None:
    api.add(status="active")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = cli.run("port-forward", str(port))
    assert done.returncode == 8
    assert f"127.0.0.1:{port} is it already" in done.stderr
