"""Commands through the system's ssh: what they get, what comes back, and that memory stays bounded."""

import hashlib
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.ssh.dev_server_container import CONTAINER, DevServer
from support.ssh.sshd_process import children_of, eventually

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024


def test_output_errors_and_exit_code_come_back_apart(server: DevServer) -> None:
    result = server.ssh("echo out; echo err >&2; exit 7")
    assert (result.stdout, result.stderr, result.returncode) == (b"out\n", b"err\n", 7)


@pytest.mark.parametrize("name", ["TERM", "XCPU", "40"])
def test_a_command_killed_by_a_signal_is_told_as_such(container: DevServer, name: str) -> None:
    result = container.ssh(f"kill -{name} $$", options=("-v",))
    assert result.returncode == 255
    assert b"rtype exit-signal" in result.stderr


def test_fifty_megabytes_of_input_come_back_exactly(server: DevServer) -> None:
    data = os.urandom(50 * MEBIBYTE)
    result = server.ssh("cat", stdin=data)
    assert result.returncode == 0
    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(data).digest()


def test_all_of_a_large_output_arrives_even_when_the_command_ends_first(server: DevServer) -> None:
    result = server.ssh("seq 1 1000000")
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 1000001)).encode()


def test_a_client_that_reads_late_still_gets_everything(container: DevServer) -> None:
    reader = "import sys, time; time.sleep(1.5); print(len(sys.stdin.buffer.read()))"
    command = f"head -c {8 * MEBIBYTE} /dev/zero"
    with container.start(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as ssh:
        counted = subprocess.run([sys.executable, "-c", reader], stdin=ssh.stdout, capture_output=True, check=True)
    assert int(counted.stdout) == 8 * MEBIBYTE
    assert ssh.returncode == 0


def test_output_of_a_process_left_behind_is_waited_for(server: DevServer) -> None:
    assert server.ssh("(sleep 0.3; echo late) & echo early").stdout == b"early\nlate\n"


def test_an_endless_command_ends_when_its_reader_does(container: DevServer) -> None:
    pipeline = subprocess.run(
        ["sh", "-c", '"$@" yes | head -1', "sh", *container.command()], capture_output=True, timeout=20, check=False
    )
    assert pipeline.stdout == b"y\n"


def test_a_command_that_never_reads_its_input_does_not_stop_the_session(server: DevServer) -> None:
    assert server.ssh("echo done", stdin=bytes(4 * MEBIBYTE)).stdout == b"done\n"
    assert server.ssh("exec 0<&-; sleep 0.3; echo done", stdin=bytes(4 * MEBIBYTE)).stdout == b"done\n"


def test_a_shell_without_a_terminal_reads_its_script_from_input(server: DevServer) -> None:
    result = server.ssh(options=("-T",), stdin=b"echo $0; cd /; pwd; exit 3\n")
    assert result.stdout == b"-bash\n/\n"
    assert result.returncode == 3


def test_a_command_need_not_be_utf_8(server: DevServer) -> None:
    result = server.ssh(b"printf %s '\xff\xfe\xe4' | od -An -tx1")
    assert result.stdout.split() == [b"ff", b"fe", b"e4"]


def test_the_environment_is_the_containers_and_the_reservations_and_nothing_of_the_servers_own(
    server: DevServer,
) -> None:
    environment = dict(line.split("=", 1) for line in server.ssh("env").stdout.decode().splitlines())
    assert environment["GPU_DEV_TEST"] == "yes"
    assert environment["GPU_DEV_NAME"] == "a $(b) 'c' = d"
    assert environment["HOME"] == environment["PWD"] == server.inside(server.home)
    assert environment["USER"] == environment["LOGNAME"] == "dev"
    assert environment["SHELL"] == "/bin/bash"
    assert environment["LANG"] == "C.UTF-8"
    expected = {"LD_LIBRARY_PATH": "/opt/image/lib", "NVIDIA_VISIBLE_DEVICES": "GPU-1", "CUDA_VERSION": "12.9"}
    assert expected.items() <= environment.items()
    assert environment["HF_HOME"] == "/workspace/hf"
    assert not {name for name in environment if "KUBERNETES" in name or "POSTGRES" in name or "IMAGE_PATH" in name}
    if server.mode == CONTAINER:
        assert environment["PATH"] == "/opt/image/bin:/usr/local/bin:/usr/bin:/bin"
        assert environment["XDG_RUNTIME_DIR"] == "/run/user/1000"


def test_a_change_of_the_environment_file_holds_from_the_next_session(container: DevServer) -> None:
    path = container.config / "environment"
    path.unlink()
    path.write_text('BROKEN LINE\n1BAD=x\nA="quoted" # no comment\nB=\n#C=c\nPATH=/usr/bin:/bin\n\0=\n')
    told = container.ssh('echo "$A|$B|${C-none}|$PATH|${GPU_DEV_TEST-gone}"').stdout
    assert told == b'"quoted" # no comment||none|/usr/bin:/bin|gone\n'


def test_a_client_may_set_its_language_and_nothing_that_changes_what_runs(container: DevServer) -> None:
    sent = "SetEnv=LC_ALL=C LANG=de_DE.UTF-8 LD_PRELOAD=/nowhere.so GPU_DEV_TEST=no PATH=/nowhere"
    result = container.ssh("echo $LC_ALL $LANG $LD_PRELOAD. $GPU_DEV_TEST $PATH", options=("-o", sent))
    assert result.stdout.decode().split()[:4] == ["C", "de_DE.UTF-8", ".", "yes"]
    assert b"/nowhere" not in result.stdout


def test_each_command_leads_a_session_of_its_own(server: DevServer) -> None:
    pid, group, session = server.ssh("ps -o pid= -o pgid= -o sid= -p $$").stdout.split()
    assert pid == group == session


def test_each_command_has_all_signals_at_their_defaults(server: DevServer) -> None:
    status = dict(line.split(":\t") for line in server.ssh("cat /proc/$$/status").stdout.decode().splitlines())
    the_c_librarys_own = 0b11 << 31  # 32 and 33, which it lets nobody touch
    assert int(status["SigIgn"], 16) & ~the_c_librarys_own == 0
    assert int(status["SigBlk"], 16) == 0


def test_a_command_inherits_no_descriptor_but_its_three(server: DevServer) -> None:
    assert server.ssh("ls /proc/$$/fd; true").stdout.split() == [b"0", b"1", b"2"]


def test_a_missing_home_is_replaced_by_the_root(server: DevServer) -> None:
    server.home.rename(server.home.with_name("elsewhere"))
    assert server.ssh("pwd").stdout == b"/\n"
    assert server.ssh(options=("-T",), stdin=b"pwd\n").stdout == b"/\n"


def test_a_command_nobody_reads_from_any_more_is_ended_by_its_next_write(server: DevServer) -> None:
    ssh = server.start("exec yes", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert ssh.stdout is not None
    assert ssh.stdout.readline() == b"y\n"
    assert children_of(server.pid) != []
    ssh.kill()
    ssh.wait()
    ssh.stdout.close()
    eventually(lambda: children_of(server.pid) == [])


def test_a_fast_writer_and_a_slow_reader_do_not_grow_the_server(container: DevServer) -> None:
    ssh = container.start("cat /dev/zero", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert ssh.stdout is not None
    before = resident(container.pid)
    moved = sum(len(ssh.stdout.read(MEBIBYTE)) for _ in range(200))
    ssh.kill()
    ssh.wait()
    ssh.stdout.close()
    assert moved == 200 * MEBIBYTE
    assert resident(container.pid, "VmHWM") - before < 24 * MEBIBYTE


def test_a_fast_client_and_a_command_that_does_not_read_do_not_grow_the_server(container: DevServer) -> None:
    before = resident(container.pid)
    ssh = container.start("sleep 2", stdin=subprocess.PIPE)
    with ssh, pytest.raises(BrokenPipeError):
        assert ssh.stdin is not None
        while True:
            ssh.stdin.write(bytes(MEBIBYTE))
    assert resident(container.pid, "VmHWM") - before < 24 * MEBIBYTE


def test_fifty_sessions_at_once_are_served_and_forgotten(server: DevServer) -> None:
    """Each a connection of its own, all of them open at the same time."""
    gate = server.home / "gate"
    before = descriptors(server.pid)
    idle = resident(server.pid)
    command = "echo $$ > at-$$; while ! test -e gate; do sleep 0.2; done; echo through"
    with ThreadPoolExecutor(50) as people:
        waiting = [people.submit(server.ssh, command) for _ in range(50)]
        eventually(lambda: len(list(server.home.glob("at-*"))) == 50, within=60)
        busy = resident(server.pid)
        gate.touch()
        assert [person.result().stdout for person in waiting] == [b"through\n"] * 50
    print(f"resident: idle {idle // 1024} KiB, with 50 sessions {busy // 1024} KiB")
    assert idle < 16 * MEBIBYTE
    assert busy < 48 * MEBIBYTE
    eventually(lambda: children_of(server.pid) == [])
    eventually(lambda: len(descriptors(server.pid)) <= len(before) + 1)


def test_a_session_that_cannot_be_started_says_so_and_the_next_one_can(container: DevServer, tmp_path: Path) -> None:
    limits = resource.prlimit(container.pid, resource.RLIMIT_NOFILE)
    control = ("-o", f"ControlPath={tmp_path}/c")
    master = container.start(options=("-N", "-M", *control), stderr=subprocess.DEVNULL)
    eventually((tmp_path / "c").exists)
    used = len(list(Path(f"/proc/{container.pid}/fd").iterdir()))
    refusals = 0
    for kind in ("-T", "-tt"):
        for spare in range(8):
            resource.prlimit(container.pid, resource.RLIMIT_NOFILE, (used + spare, limits[1]))
            result = container.ssh("echo started", options=(kind, *control))
            resource.prlimit(container.pid, resource.RLIMIT_NOFILE, limits)
            refusals += b"cannot start a process: too many open files" in result.stderr
            assert container.ssh("echo again", options=(kind, *control)).stdout.strip() == b"again"
    assert refusals > 0
    master.kill()
    master.wait()


def descriptors(pid: int) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def resident(pid: int, kind: str = "VmRSS") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(kind))
    return int(line.split()[1]) * 1024
