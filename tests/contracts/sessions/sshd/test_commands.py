"""Commands through the system's ssh: what they get, what comes back, and that memory stays bounded."""

import hashlib
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from support.ssh.sshd_process import Server, StartServer, children_of, eventually

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024


def test_output_errors_and_exit_code_come_back_apart(server: Server) -> None:
    result = server.ssh("echo out; echo err >&2; exit 7")
    assert (result.stdout, result.stderr, result.returncode) == (b"out\n", b"err\n", 7)


def test_a_command_killed_by_a_signal_is_told_as_such(server: Server) -> None:
    result = server.ssh("kill -TERM $$", options=("-v",))
    assert result.returncode == 255
    assert b"rtype exit-signal" in result.stderr


@pytest.mark.parametrize("name", ["XCPU", "40"])
def test_a_signal_without_a_portable_name_ends_the_session_too(server: Server, name: str) -> None:
    assert server.ssh(f"kill -{name} $$").returncode == 255


def test_all_of_a_large_output_arrives_even_when_the_command_ends_first(server: Server) -> None:
    result = server.ssh("seq 1 1000000")
    assert hashlib.sha256(result.stdout).digest() == _digest_of_numbers(1000000)


def test_a_client_that_reads_late_still_gets_everything(server: Server) -> None:
    reader = "import sys, time; time.sleep(1.5); print(len(sys.stdin.buffer.read()))"
    with server.start(f"head -c {8 * MEBIBYTE} /dev/zero", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as ssh:
        counted = subprocess.run([sys.executable, "-c", reader], stdin=ssh.stdout, capture_output=True, check=True)
    assert int(counted.stdout) == 8 * MEBIBYTE
    assert ssh.returncode == 0


def test_output_of_a_process_left_behind_is_waited_for(server: Server) -> None:
    result = server.ssh("(sleep 0.3; echo late) & echo early")
    assert result.stdout == b"early\nlate\n"


def test_an_endless_command_ends_when_its_reader_does(server: Server) -> None:
    pipeline = subprocess.run(
        ["sh", "-c", '"$@" yes | head -1', "sh", *server.command()], capture_output=True, timeout=20, check=False
    )
    assert pipeline.stdout == b"y\n"


def test_input_and_its_end_reach_the_command(server: Server) -> None:
    data = os.urandom(3 * MEBIBYTE)
    result = server.ssh("cat", stdin=data)
    assert result.stdout == data


def test_a_command_that_never_reads_its_input_does_not_stop_the_session(server: Server) -> None:
    assert server.ssh("echo done", stdin=bytes(4 * MEBIBYTE)).stdout == b"done\n"


def test_a_shell_without_a_terminal_reads_its_script_from_input(server: Server) -> None:
    result = server.ssh(options=("-T",), stdin=b"echo $0; cd /; pwd; exit 3\n")
    assert result.stdout == b"-bash\n/\n"
    assert result.returncode == 3


def test_a_command_need_not_be_utf_8(server: Server) -> None:
    result = server.ssh(b"printf %s '\xff\xfe\xe4' | od -An -tx1")
    assert result.stdout.split() == [b"ff", b"fe", b"e4"]


def test_the_session_has_the_environment_of_the_dev_server_and_nothing_of_the_servers_own(server: Server) -> None:
    environment = dict(line.split("=", 1) for line in server.ssh("env").stdout.decode().splitlines())
    assert environment["GPU_DEV_TEST"] == "yes"
    assert environment["HOME"] == environment["PWD"] == str(server.home)
    assert environment["USER"] == environment["LOGNAME"] == "dev"
    assert environment["SHELL"] == "/bin/bash"
    assert "PYTHONPATH" not in environment


def test_a_client_may_set_its_language_and_nothing_that_changes_what_runs(server: Server) -> None:
    sent = "SetEnv=LC_ALL=C LANG=de_DE.UTF-8 LD_PRELOAD=/nowhere.so GPU_DEV_TEST=no PATH=/nowhere"
    result = server.ssh("echo $LC_ALL $LANG $LD_PRELOAD. $GPU_DEV_TEST $PATH", options=("-o", sent))
    assert result.stdout.decode().split()[:4] == ["C", "de_DE.UTF-8", ".", "yes"]
    assert b"/nowhere" not in result.stdout


def test_each_command_leads_a_session_of_its_own(server: Server) -> None:
    pid, group, session = server.ssh("ps -o pid= -o pgid= -o sid= -p $$").stdout.split()
    assert pid == group == session


def test_each_command_has_all_signals_at_their_defaults_whatever_the_server_was_started_with(server: Server) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc to see a process's signals")
    status = dict(line.split(":\t") for line in server.ssh("cat /proc/$$/status").stdout.decode().splitlines())
    the_c_librarys_own = 0b11 << 31  # 32 and 33, which it lets nobody touch
    assert int(status["SigIgn"], 16) & ~the_c_librarys_own == 0
    assert int(status["SigBlk"], 16) == 0


def test_a_command_inherits_no_descriptor_but_its_three(server: Server) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see a process's descriptors")
    result = server.ssh("ls /proc/$$/fd; true")
    assert result.stdout.split() == [b"0", b"1", b"2"]


def test_a_missing_shell_is_replaced_by_the_systems_own(start_server: StartServer) -> None:
    server = start_server(shell="/nowhere/zsh")
    assert server.ssh("echo $SHELL").stdout == b"/bin/sh\n"


def test_a_missing_home_is_replaced_by_the_root(start_server: StartServer) -> None:
    server = start_server(home="/nowhere/home")
    assert server.ssh("pwd").stdout == b"/\n"


def test_a_command_nobody_reads_from_any_more_is_ended_by_its_next_write(server: Server) -> None:
    ssh = server.start("echo $$; exec yes", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert ssh.stdout is not None
    pid = int(ssh.stdout.readline())
    ssh.kill()
    ssh.wait()
    ssh.stdout.close()
    eventually(lambda: not _is_running(pid))


def test_a_fast_writer_and_a_slow_reader_do_not_grow_the_server(server: Server) -> None:
    ssh = server.start("cat /dev/zero", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert ssh.stdout is not None
    before = _resident(server.pid)
    moved = sum(len(ssh.stdout.read(MEBIBYTE)) for _ in range(200))
    ssh.kill()
    ssh.wait()
    ssh.stdout.close()
    assert moved == 200 * MEBIBYTE
    assert _resident(server.pid, "VmHWM") - before < 24 * MEBIBYTE


def test_a_fast_client_and_a_command_that_does_not_read_do_not_grow_the_server(server: Server) -> None:
    before = _resident(server.pid)
    with server.start("sleep 2", stdin=subprocess.PIPE) as ssh:
        assert ssh.stdin is not None
        os.set_blocking(ssh.stdin.fileno(), False)
        chunk = bytes(MEBIBYTE)
        while ssh.poll() is None:
            _write_what_fits(ssh.stdin.fileno(), chunk)
    assert ssh.returncode == 0
    assert _resident(server.pid, "VmHWM") - before < 24 * MEBIBYTE


def test_fifty_connections_at_once_are_all_served(server: Server) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda number: server.ssh(f"echo {number}").stdout, range(50)))
    assert answers == [f"{number}\n".encode() for number in range(50)]


def test_no_child_is_left_unreaped(server: Server) -> None:
    for _ in range(3):
        server.ssh("true")
    eventually(lambda: children_of(server.pid) == [])


def test_no_descriptor_is_left_open_by_what_sessions_do(server: Server) -> None:
    server.ssh("true")
    before = _descriptors(server.pid)
    server.ssh("true", options=("-tt",))
    server.ssh("echo x >&2; cat", stdin=b"input")
    server.run("sftp", "-b", "-", server.address, stdin=b"ls\n")
    server.ssh("yes", options=("-tt", "-W", "127.0.0.1:1"))
    for kind in ("-T", "-tt"):
        ssh = server.start("echo $$; sleep 100", options=(kind,), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert ssh.stdout is not None
        session = int(ssh.stdout.readline())
        ssh.kill()
        ssh.wait()
        ssh.stdout.close()
        with suppress(ProcessLookupError):  # hung up where it was on a terminal
            os.killpg(session, signal.SIGKILL)
    eventually(lambda: _descriptors(server.pid) <= before)


@pytest.mark.parametrize("kind", ["-T", "-tt"])
def test_a_session_that_cannot_be_started_says_so_and_the_next_one_can(server: Server, kind: str) -> None:
    if sys.platform != "linux":
        pytest.skip("needs prlimit to take descriptors away from a running process")
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    control = ("-o", f"ControlPath={server.folder}/control")
    master = server.start(options=("-N", "-M", *control), stderr=subprocess.DEVNULL)
    eventually((server.folder / "control").exists)
    used = _descriptors(server.pid)
    refusals = 0
    for spare in range(8):
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (max(used) + 1 + spare, limits[1]))
        result = server.ssh("echo started", options=(kind, *control))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        if b"cannot start a process: Too many open files" in result.stderr:
            refusals += 1
            assert result.returncode == 254
        else:
            assert result.stdout.strip() == b"started"
        assert server.ssh("echo again", options=(kind, *control)).stdout.strip() == b"again"
        eventually(lambda: _descriptors(server.pid) <= used)
    assert refusals > 0
    master.kill()
    master.wait()


def _descriptors(pid: int) -> set[int]:
    folder = Path(f"/proc/{pid}/fd")
    if not folder.exists():
        pytest.skip("needs /proc to see a process's descriptors")
    return {int(entry.name) for entry in folder.iterdir()}


def _digest_of_numbers(last: int) -> bytes:
    return hashlib.sha256("".join(f"{number}\n" for number in range(1, last + 1)).encode()).digest()


def _is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False).stdout.strip()
    return bool(state) and not state.startswith(b"Z")


def _resident(pid: int, kind: str = "VmRSS") -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc to see a process's memory")
    line = next(line for line in status.read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) * 1024


def _write_what_fits(fd: int, data: bytes) -> None:
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(fd, data)
