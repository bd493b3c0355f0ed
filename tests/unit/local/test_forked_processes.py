"""A forked process never runs on in its parent's code, whatever fails in it."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudev.adapters.local.machine import isolation_probe
from gpudev.adapters.local.servers import zygote
from gpudev.adapters.local.sshd import child_process

RAN_ON = 99


def exit_code_of(work: Callable[[], object]) -> int:
    """Of a fork that runs this, and says so if it comes back."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work()
        finally:
            os._exit(RAN_ON)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def broken_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("stderr_is_full", [False, True])
def test_a_first_process_whose_zygote_is_gone_ends(tmp_path: Path, stderr_is_full: bool) -> None:
    def start() -> None:
        if stderr_is_full:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        zygote._start_first_process(tmp_path / "nowhere", socket.socket(), -1, -1, broken_pipe())

    assert exit_code_of(start) == 0


def test_a_spawn_that_fails_before_it_begins_does_not_go_on_as_a_second_zygote(tmp_path: Path) -> None:
    parent = os.getpid()

    def spawn() -> None:
        ours, _theirs = socket.socketpair()
        closed = os.open(os.devnull, os.O_RDONLY)
        os.close(closed)
        answer = zygote.Zygote(ours)._spawn(tmp_path, [closed, closed, closed])
        assert "error" in answer
        assert os.getppid() == parent, "this is the fork"
        os._exit(0)

    assert exit_code_of(spawn) == 0


def test_a_child_of_the_ssh_server_ends_with_its_work(tmp_path: Path) -> None:
    def fail() -> None:
        class Unprintable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even that")

        raise Unprintable

    def spawn() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        pid = child_process.spawn(fail, (null, null, null), home=str(tmp_path), on_terminal=False)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    assert exit_code_of(spawn) == 126


def test_a_probe_that_cannot_report_ends() -> None:
    def fail() -> None:
        os.closerange(3, 100)
        raise OSError(1, "no")

    assert isolation_probe._run_in_child(fail) is not None
