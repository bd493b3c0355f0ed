"""Commands without a terminal: input, output, exit codes, signals."""

import fcntl
import hashlib
import os
import re
import resource
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from contracts.ssh.servers import SshServers, end_process
from support.polling import eventually
from support.ssh.ssh_server import (
    MEBIBYTE,
    SshServer,
    children_of,
    descriptors_of,
    memory_of,
)

MOST_GROWTH = 24 * MEBIBYTE


class CommandContract(SshServers):
    """Commands: what they get, what comes back, and that memory stays bounded."""

    memory_limits: ClassVar[tuple[int, int] | None] = None
    """Of the idle server, and with fifty sessions. None: not measured."""

    def test_output_errors_and_exit_code_come_back_apart(self, ssh: SshServer) -> None:
        result = ssh.ssh("echo out; echo err >&2; exit 7")
        assert (result.stdout, result.stderr, result.returncode) == (b"out\n", b"err\n", 7)

    @pytest.mark.parametrize("name", ["TERM", "XCPU", "40"])
    def test_a_command_killed_by_a_signal_is_told_as_such(self, ssh: SshServer, name: str) -> None:
        result = ssh.ssh(f"kill -{name} $$", options=("-v",))
        assert result.returncode == 255
        assert b"rtype exit-signal" in result.stderr

    def test_fifty_megabytes_of_input_come_back_exactly(self, ssh: SshServer) -> None:
        data = os.urandom(50 * MEBIBYTE)
        result = ssh.ssh("cat", stdin=data)
        assert result.returncode == 0
        assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(data).digest()

    def test_all_of_a_large_output_arrives_even_when_the_command_ends_first(self, ssh: SshServer) -> None:
        expected = "".join(f"{number}\n" for number in range(1, 1000001)).encode()
        result = ssh.ssh("seq 1 1000000")
        assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(expected).digest()

    def test_a_client_that_reads_late_still_gets_everything(self, ssh: SshServer) -> None:
        command = f"head -c {8 * MEBIBYTE} /dev/zero"
        with ssh.start(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as client:
            assert client.stdout is not None
            eventually(lambda: _unread(client) >= 32768, "its pipe does not fill")
            assert len(client.stdout.read()) == 8 * MEBIBYTE
        assert client.returncode == 0

    def test_output_of_a_process_left_behind_is_waited_for(self, ssh: SshServer) -> None:
        assert ssh.ssh("(sleep 0.3; echo late) & echo early").stdout == b"early\nlate\n"

    def test_an_endless_command_ends_when_its_reader_does(self, ssh: SshServer) -> None:
        pipeline = subprocess.run(
            ["sh", "-c", '"$@" yes | head -1', "sh", *ssh.command()], capture_output=True, timeout=20, check=False
        )
        assert pipeline.stdout == b"y\n"

    def test_a_command_that_never_reads_its_input_does_not_stop_the_session(self, ssh: SshServer) -> None:
        assert ssh.ssh("echo done", stdin=bytes(4 * MEBIBYTE)).stdout == b"done\n"
        assert ssh.ssh("exec 0<&-; sleep 0.3; echo done", stdin=bytes(4 * MEBIBYTE)).stdout == b"done\n"

    def test_a_shell_without_a_terminal_reads_its_script_from_input(self, ssh: SshServer) -> None:
        result = ssh.ssh(options=("-T",), stdin=b"echo $0; cd /; pwd; exit 3\n")
        assert result.stdout == b"-bash\n/\n"
        assert result.returncode == 3

    def test_a_command_need_not_be_utf_8(self, ssh: SshServer) -> None:
        result = ssh.ssh(b"printf %s '\xff\xfe\xe4' | od -An -tx1")
        assert result.stdout.split() == [b"ff", b"fe", b"e4"]

    def test_the_session_has_the_environment_of_the_dev_server_and_nothing_of_the_servers_own(
        self, ssh: SshServer
    ) -> None:
        environment = dict(line.split("=", 1) for line in ssh.ssh("env").stdout.decode().splitlines())
        assert environment["GPU_DEV_TEST"] == "yes"
        assert environment["HOME"] == environment["PWD"] == ssh.inside(ssh.home)
        assert environment["USER"] == environment["LOGNAME"] == "dev"
        assert environment["SHELL"] == "/bin/bash"
        assert not {name for name in environment if re.search("PYTHONPATH|KUBERNETES|POSTGRES|IMAGE_PATH", name)}

    def test_a_client_may_set_its_language_and_nothing_that_changes_what_runs(self, ssh: SshServer) -> None:
        sent = "SetEnv=LC_ALL=C LANG=de_DE.UTF-8 LD_PRELOAD=/nowhere.so GPU_DEV_TEST=no PATH=/nowhere"
        result = ssh.ssh("echo $LC_ALL $LANG $LD_PRELOAD. $GPU_DEV_TEST $PATH", options=("-o", sent))
        assert result.stdout.decode().split()[:4] == ["C", "de_DE.UTF-8", ".", "yes"]
        assert b"/nowhere" not in result.stdout

    def test_each_command_leads_a_session_of_its_own(self, ssh: SshServer) -> None:
        pid, group, session = ssh.ssh("ps -o pid= -o pgid= -o sid= -p $$").stdout.split()
        assert pid == group == session

    def test_each_command_has_all_signals_at_their_defaults_whatever_the_server_was_started_with(
        self, ssh: SshServer
    ) -> None:
        if not Path("/proc/self/status").exists():
            pytest.skip("needs /proc to see a process's signals")
        status = dict(line.split(":\t") for line in ssh.ssh("cat /proc/$$/status").stdout.decode().splitlines())
        the_c_librarys_own = 0b11 << 31  # 32 and 33, which it lets nobody touch
        assert int(status["SigIgn"], 16) & ~the_c_librarys_own == 0
        assert int(status["SigBlk"], 16) == 0

    def test_a_command_inherits_no_descriptor_but_its_three(self, ssh: SshServer) -> None:
        if not Path("/proc/self/fd").exists():
            pytest.skip("needs /proc to see a process's descriptors")
        assert ssh.ssh("ls /proc/$$/fd; true").stdout.split() == [b"0", b"1", b"2"]

    def test_a_missing_home_is_replaced_by_the_root(self, ssh: SshServer) -> None:
        ssh.home.rename(ssh.home.with_name("elsewhere"))
        assert ssh.ssh("pwd").stdout == b"/\n"
        assert ssh.ssh(options=("-T",), stdin=b"pwd\n").stdout == b"/\n"

    def test_a_command_nobody_reads_from_any_more_is_ended_by_its_next_write(self, ssh: SshServer) -> None:
        client = ssh.start("exec yes", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert client.stdout is not None
        assert client.stdout.readline() == b"y\n"
        assert children_of(ssh.pid) != []
        end_process(client)
        eventually(lambda: children_of(ssh.pid) == [])

    def test_a_fast_writer_and_a_slow_reader_do_not_grow_the_server(self, ssh: SshServer) -> None:
        client = ssh.start("cat /dev/zero", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert client.stdout is not None
        before = memory_of(ssh.pid)
        moved = sum(len(client.stdout.read(MEBIBYTE)) for _ in range(200))
        end_process(client)
        assert moved == 200 * MEBIBYTE
        assert memory_of(ssh.pid, "VmHWM") - before < MOST_GROWTH

    def test_a_fast_client_and_a_command_that_does_not_read_do_not_grow_the_server(self, ssh: SshServer) -> None:
        before = memory_of(ssh.pid)
        with ssh.start("sleep 2", stdin=subprocess.PIPE) as client:
            assert client.stdin is not None
            os.set_blocking(client.stdin.fileno(), False)
            chunk = bytes(MEBIBYTE)
            while client.poll() is None:
                with suppress(BlockingIOError, BrokenPipeError):
                    os.write(client.stdin.fileno(), chunk)
        assert client.returncode == 0
        assert memory_of(ssh.pid, "VmHWM") - before < MOST_GROWTH

    def test_fifty_sessions_at_once_are_served_and_forgotten(self, ssh: SshServer) -> None:
        """Each a connection of its own, all of them open at the same time."""
        before, idle = descriptors_of(ssh.pid), memory_of(ssh.pid)
        command = "echo $$ > at-$$; while ! test -e gate; do sleep 0.2; done; echo through"
        with ThreadPoolExecutor(50) as people:
            waiting = [people.submit(ssh.ssh, command) for _ in range(50)]
            eventually(lambda: len(list(ssh.home.glob("at-*"))) == 50)
            busy = memory_of(ssh.pid)
            (ssh.home / "gate").touch()
            assert [person.result().stdout for person in waiting] == [b"through\n"] * 50
        eventually(lambda: children_of(ssh.pid) == [])
        eventually(lambda: len(descriptors_of(ssh.pid)) <= len(before) + 1)
        print(f"resident: idle {idle // 1024} KiB, with 50 sessions {busy // 1024} KiB")
        if self.memory_limits is not None:
            most_idle, most_busy = self.memory_limits
            assert idle < most_idle
            assert busy < most_busy

    def test_no_descriptor_is_left_open_by_what_sessions_do(self, ssh: SshServer) -> None:
        ssh.ssh("true")
        before = descriptors_of(ssh.pid)
        ssh.ssh("true", options=("-tt",))
        ssh.ssh("echo x >&2; cat", stdin=b"input")
        ssh.sftp("ls")
        ssh.ssh("yes", options=("-tt", "-W", "127.0.0.1:1"))
        for kind in ("-T", "-tt"):
            client = ssh.start("echo $$; sleep 100", options=(kind,), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            assert client.stdout is not None
            session = int(client.stdout.readline())
            end_process(client)
            ssh.ssh(f"kill -KILL -- -{session}")  # fails where it was on a terminal, and has been hung up
        eventually(lambda: descriptors_of(ssh.pid) <= before)

    @pytest.fixture
    def own_ssh(self, ssh: SshServer) -> SshServer:
        """One that runs as we do: we may not take descriptors away from another user's process."""
        return ssh

    @pytest.mark.parametrize("kind", ["-T", "-tt"])
    def test_a_session_that_cannot_be_started_says_so_and_the_next_one_can(self, own_ssh: SshServer, kind: str) -> None:
        if sys.platform != "linux":
            pytest.skip("needs prlimit to take descriptors away from a running process")
        ssh = own_ssh
        limits = resource.prlimit(ssh.pid, resource.RLIMIT_NOFILE)
        control = ("-o", f"ControlPath={ssh.folder}/control")
        master = ssh.start(options=("-N", "-M", *control), stderr=subprocess.DEVNULL)
        eventually((ssh.folder / "control").exists)
        used = descriptors_of(ssh.pid)
        refusals = 0
        for spare in range(8):
            resource.prlimit(ssh.pid, resource.RLIMIT_NOFILE, (max(used) + 1 + spare, limits[1]))
            result = ssh.ssh("echo started", options=(kind, *control))
            resource.prlimit(ssh.pid, resource.RLIMIT_NOFILE, limits)
            if b"cannot start a process: too many open files" in result.stderr.lower():
                refusals += 1
                assert result.returncode == 254
            else:
                assert result.stdout.strip() == b"started"
            assert ssh.ssh("echo again", options=(kind, *control)).stdout.strip() == b"again"
            eventually(lambda: descriptors_of(ssh.pid) <= used)
        assert refusals > 0
        end_process(master)


def _unread(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    size: int = struct.unpack("i", fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)))[0]
    return size
