"""How a dev server ends, and what it does as the one to whom all orphans come."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.polling import eventually
from support.ssh.dev_server_container import Builder, DevServer
from support.ssh.ssh_server import OpenScreen, children_of

pytestmark = pytest.mark.slow


def test_no_zombie_is_left_of_a_hundred_orphans(server: DevServer) -> None:
    """As the first process of a container, and as a process among others."""
    script = "for i in $(seq 100); do (sleep 0.0$((i % 10)) & exec sh -c ':') & done; wait; echo done"
    assert server.ssh(script).stdout == b"done\n"
    eventually(lambda: children_of(server.pid) == [])
    assert server.ssh("echo still here").stdout == b"still here\n"


def test_orphans_come_to_the_server(server: DevServer) -> None:
    server.ssh("setsid sleep 60 </dev/null >/dev/null 2>&1 &")
    eventually(lambda: [_command(child) for child in children_of(server.pid)] == ["sleep"])


def test_asked_to_end_it_tells_the_people_hangs_up_and_is_gone_at_once(
    server: DevServer, open_screen: OpenScreen
) -> None:
    screen = open_screen(server)
    screen.type("trap 'echo yes > ~/hung-up; exit 3' HUP; echo rea''dy; while :; do sleep 0.1; done\n")
    screen.wait_for("ready")
    on_pipes = server.start("trap 'echo bye; exit 4' HUP; echo ready; while :; do sleep 0.1; done",
                            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)  # fmt: skip
    assert on_pipes.stdout is not None
    assert on_pipes.stdout.readline() == b"ready\n"
    began = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    assert screen.wait_for_end() == 3
    assert b"*** This dev server is ending now. ***" in screen.transcript
    assert on_pipes.communicate(timeout=30)[0] == b"bye\n"
    assert on_pipes.returncode == 4
    assert server.process.wait(30) == 0
    assert time.monotonic() - began < 12, "the grace is longer"
    assert (server.home / "hung-up").read_text() == "yes\n"
    assert "msg=ended" in server.log.read_text()


def test_a_job_in_the_background_is_asked_to_end_and_may_save_its_work(server: DevServer) -> None:
    job = "trap 'sleep 0.3; echo saved > ~/checkpoint; exit' TERM; echo > ~/started; while :; do sleep 0.1; done"
    server.ssh(f'nohup setsid sh -c "{job}" </dev/null >/dev/null 2>&1 &')
    eventually((server.home / "started").exists)
    os.kill(server.pid, signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert (server.home / "checkpoint").read_text() == "saved\n"


def test_who_does_not_listen_is_killed_when_the_grace_is_over(builder: Builder) -> None:
    server = builder.start("--grace", "1s")
    stubborn = "trap '' HUP TERM INT; echo ready; while :; do sleep 0.1; done"
    deaf = server.start(stubborn, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == b"ready\n"
    server.ssh(f'setsid sh -c "{stubborn}" </dev/null >/dev/null 2>&1 &')
    stopped = server.start("echo $$; kill -STOP $$", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert stopped.stdout is not None
    assert stopped.stdout.readline()
    began = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert 0.9 < time.monotonic() - began < 12, "it was given a shorter one than usual"
    for ssh in (deaf, stopped):
        ssh.communicate(timeout=30)
        assert ssh.returncode == 255
    assert _left_over(server) == []


def test_nobody_gets_in_while_it_ends(builder: Builder) -> None:
    server = builder.start("--grace", "3s")
    deaf = server.start("trap '' HUP; echo ready; while :; do sleep 0.1; done", stdout=subprocess.PIPE)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == b"ready\n"
    os.kill(server.pid, signal.SIGTERM)
    eventually(lambda: "msg=ending" in server.log.read_text())
    assert not server.ready()
    assert server.ssh("true").returncode == 255
    server.process.wait(30)
    deaf.communicate(timeout=30)


def _left_over(server: DevServer) -> list[int]:
    """Whoever still stands in the dev server's home."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cwd").readlink() == server.home:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
