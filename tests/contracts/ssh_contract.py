"""What every dev server promises to the system's own ssh, scp, sftp and rsync, and to people at a terminal.

A server's tests derive from `SshContract`, or from the parts of it, and give them `start_ssh`.
"""

import fcntl
import hashlib
import os
import re
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import ClassVar

import pytest

from support.polling import eventually
from support.ports import NEEDS_OTHER_ADDRESS, OTHER_ADDRESS, free_port
from support.ssh.forwarding import (
    PATIENCE,
    answers,
    ask,
    echo_service,
    forwarding,
    is_refused,
    serving_echo,
    to_path,
    to_port,
    unix_listener,
    wait_for_line,
)
from support.ssh.ssh_server import (
    MEBIBYTE,
    OpenScreen,
    SshServer,
    StartSsh,
    children_of,
    descriptors_of,
    logging_in_at_once,
    make_key,
    memory_of,
    opening_screens,
)

MOST_GROWTH = 24 * MEBIBYTE
METADATA_ADDRESSES = ("169.254.169.254", "169.254.170.2", "[::ffff:169.254.169.254]", "[fd00:ec2::254]")
AWKWARD_NAME = "ein Name mit 'Zeichen' und ümläuten"
WAITING_PROGRAM = "sh -c 'echo rea''dy; exec sleep 100'"
# In Perl, because bash and curses can miss a change of size that comes just before they wait for a key.
FULL_SCREEN_PROGRAM = r"""
my $changed = 1;
$| = 1;
$SIG{WINCH} = sub { $changed = 1 };
system "stty -icanon -echo";
while (1) {
    if ($changed) {
        $changed = 0;
        my ($rows, $columns) = split " ", `stty size`;
        print "\e[H\e[2J\e[7m$columns x $rows\e[0m";
        printf "\e[%d;%dHm\xc3\xbctte\e[%d;1Hbottom", $rows / 2, $columns / 2, $rows;
    }
    vec(my $ready = "", 0, 1) = 1;
    next unless select($ready, undef, undef, 0.1) > 0;
    sysread STDIN, my $key, 1;
    exit 6 if $key eq "q";
}
"""


class SshServers:
    @pytest.fixture
    def start_ssh(self) -> StartSsh:
        raise NotImplementedError("a server's tests say how it is started")

    @pytest.fixture
    def ssh(self, start_ssh: StartSsh) -> SshServer:
        return start_ssh()


class LoginContract(SshServers):
    """Who gets in, how, and what is done about those who should not."""

    def test_the_owner_gets_in_and_the_host_key_is_the_given_one(self, ssh: SshServer) -> None:
        assert ssh.lets_in()  # with StrictHostKeyChecking, against the key that was given

    @pytest.mark.parametrize("algorithm", ["ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp521", "ssh-ed25519"])
    def test_keys_of_every_usual_kind_are_taken(self, ssh: SshServer, tmp_path: Path, algorithm: str) -> None:
        key, public = make_key(tmp_path, algorithm)
        ssh.set_authorized_keys(public)
        assert ssh.lets_in(key)

    def test_another_key_does_not_get_in(self, ssh: SshServer, tmp_path: Path) -> None:
        key, _ = make_key(tmp_path)
        assert not ssh.lets_in(key)

    @pytest.mark.parametrize("user", ["root", "Dev", "devel", "ubuntu", "dev2", ""])
    def test_another_user_name_does_not_get_in_with_the_owners_key(self, ssh: SshServer, user: str) -> None:
        assert not ssh.lets_in(user=user)

    def test_only_public_keys_are_offered_as_a_way_in(self, ssh: SshServer) -> None:
        options = ("-v", "-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=none,password")
        result = ssh.ssh("true", options=options)
        assert b"Authentications that can continue: publickey\r\n" in result.stderr

    def test_a_change_of_keys_holds_from_the_next_login(self, ssh: SshServer, tmp_path: Path) -> None:
        key, public = make_key(tmp_path)
        owners = ssh.authorized_keys.read_text()
        ssh.set_authorized_keys(owners + public)
        assert ssh.lets_in(key)
        ssh.set_authorized_keys(owners)
        assert not ssh.lets_in(key)
        ssh.authorized_keys.unlink()
        assert not ssh.lets_in()
        ssh.set_authorized_keys(owners)
        assert ssh.lets_in()

    def test_a_damaged_line_among_the_keys_keeps_nobody_out(self, ssh: SshServer) -> None:
        owners = ssh.authorized_keys.read_text()
        ssh.set_authorized_keys(f'# mine\nssh-ed25519 AAAAbroken\ncommand="open quote ssh-rsa\n\xff\n\n{owners}')
        assert ssh.lets_in()

    def test_options_of_a_key_are_obeyed(self, ssh: SshServer) -> None:
        owners = ssh.authorized_keys.read_text()
        ssh.set_authorized_keys(f'command="echo forced",no-port-forwarding {owners}')
        assert ssh.ssh("echo mine").stdout == b"forced\n"
        assert b"open failed" in ssh.ssh(options=("-W", f"127.0.0.1:{ssh.port}")).stderr

    def test_a_client_with_too_many_wrong_keys_is_sent_away(self, ssh: SshServer, tmp_path: Path) -> None:
        keys = tuple(make_key(tmp_path, name=f"wrong{number}")[0] for number in range(40))
        assert b"oo many authentication failures" in ssh.ssh("true", keys=keys).stderr
        assert ssh.lets_in(*keys[:20], ssh.key)

    def test_whoever_does_not_log_in_in_time_is_cut_off(self, start_ssh: StartSsh) -> None:
        with socket.create_connection(("127.0.0.1", start_ssh(login_seconds=0.5).port), timeout=30) as idle:
            began = time.monotonic()
            while idle.recv(4096):
                pass
            assert time.monotonic() - began < 30

    def test_a_crowd_that_comes_at_once_gets_in(self, ssh: SshServer) -> None:
        """As many as a fast machine starts before the first of them has logged in."""
        with logging_in_at_once(ssh.port, 300):
            assert ssh.lets_in()

    def test_connections_that_never_log_in_keep_nobody_out(self, ssh: SshServer) -> None:
        idlers = [socket.create_connection(("127.0.0.1", ssh.port), timeout=10) for _ in range(520)]
        try:
            assert ssh.lets_in()
            for cut_off in idlers[:10]:
                while cut_off.recv(4096):
                    pass
        finally:
            for idler in idlers:
                idler.close()

    def test_noise_on_the_port_harms_nobody(self, ssh: SshServer) -> None:
        for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(70000), b"SSH-2.0-x\r\n" + os.urandom(5000), b""):
            with socket.create_connection(("127.0.0.1", ssh.port), timeout=10) as connection:
                try:
                    connection.sendall(noise)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except TimeoutError:
                    raise
                except OSError:
                    pass  # cut off in the middle of it, also before it could say that this was all
        assert ssh.lets_in()

    def test_new_keys_are_agreed_upon_in_the_middle_of_a_transfer(self, ssh: SshServer) -> None:
        data = os.urandom(8 * MEBIBYTE)
        result = ssh.ssh("cat", options=("-o", "RekeyLimit=1M", "-v"), stdin=data)
        assert result.stdout == data
        assert result.stderr.count(b"SSH2_MSG_KEXINIT sent") > 4

    def test_a_client_that_stops_answering_is_given_up(self, start_ssh: StartSsh) -> None:
        server = start_ssh(keepalive_seconds=0.25)
        ended = server.home / "ended"
        script = "trap 'echo > ~/ended; exit' HUP; while :; do sleep 0.1; done"
        with server.start(script, options=("-tt", "-v"), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as client:
            assert client.stderr is not None
            asked = (line for line in client.stderr if b"keepalive@openssh.com" in line)
            assert len(list(islice(asked, 12))) == 12  # more than may be missed: as long as it runs, it answers
            assert not ended.exists()
            os.kill(client.pid, signal.SIGSTOP)
            eventually(ended.exists)
            client.kill()


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
        _end(client)
        eventually(lambda: children_of(ssh.pid) == [])

    def test_a_fast_writer_and_a_slow_reader_do_not_grow_the_server(self, ssh: SshServer) -> None:
        client = ssh.start("cat /dev/zero", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert client.stdout is not None
        before = memory_of(ssh.pid)
        moved = sum(len(client.stdout.read(MEBIBYTE)) for _ in range(200))
        _end(client)
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
            _end(client)
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
        _end(master)


class TerminalContract(SshServers):
    """Interactive sessions, as a person at a terminal has them."""

    @pytest.fixture
    def open_screen(self) -> Iterator[OpenScreen]:
        with opening_screens() as open_one:
            yield open_one

    def test_a_login_shell_answers_and_gives_its_exit_code(self, ssh: SshServer, open_screen: OpenScreen) -> None:
        screen = open_screen(ssh)
        screen.type("echo shell=$0 term=$TERM; test -t 0 && tty\n")
        screen.wait_for("shell=-bash term=xterm-256color")
        screen.wait_for("/dev/")
        screen.type("exit 5\n")
        assert screen.wait_for_end() == 5

    def test_the_terminal_belongs_to_the_person(self, ssh: SshServer) -> None:
        result = ssh.ssh('test "$(tty)" = "$SSH_TTY" && stat -c %u:%a "$SSH_TTY"', options=("-tt",))
        uid, mode = result.stdout.decode().strip().split(":")
        assert int(uid) == ssh.uid
        assert int(mode, 8) & 0o007 == 0

    def test_the_terminal_has_the_size_of_the_persons_window_and_follows_it(
        self, ssh: SshServer, open_screen: OpenScreen
    ) -> None:
        screen = open_screen(ssh, columns=101, rows=33)
        screen.type("while sleep 0.1; do stty size; done\n")
        screen.wait_for("33 101")
        screen.resize(77, 22)
        screen.wait_for("22 77")

    def test_a_full_screen_program_is_drawn_and_redrawn_when_the_window_changes(
        self, ssh: SshServer, open_screen: OpenScreen
    ) -> None:
        (ssh.home / "program").write_text(FULL_SCREEN_PROGRAM)
        screen = open_screen(ssh, "perl program", options=("-t",), columns=90, rows=30)
        screen.wait_for("90 x 30")
        screen.wait_for("mütte")
        screen.wait_until(lambda: screen.text.splitlines()[29:] == ["bottom"])
        screen.resize(60, 20)
        screen.wait_for("60 x 20")
        screen.wait_until(lambda: screen.text.splitlines()[19:] == ["bottom"])
        screen.type("q")
        assert screen.wait_for_end() == 6

    def test_ctrl_c_interrupts_the_program_and_not_the_shell(self, ssh: SshServer, open_screen: OpenScreen) -> None:
        screen = open_screen(ssh)
        screen.type(f"{WAITING_PROGRAM}\n")
        screen.wait_for("ready")
        screen.type(b"\x03")
        screen.type("echo code=$?\n")
        screen.wait_for("code=130")

    def test_ctrl_z_and_job_control_work(self, ssh: SshServer, open_screen: OpenScreen) -> None:
        screen = open_screen(ssh)
        screen.type(f"{WAITING_PROGRAM}\n")
        screen.wait_for("ready")
        screen.type(b"\x1a")
        screen.wait_for("Stopped")
        screen.type("kill %1; echo jobs''=done\n")
        screen.wait_for("jobs=done")

    def test_ctrl_d_ends_the_shell(self, ssh: SshServer, open_screen: OpenScreen) -> None:
        screen = open_screen(ssh)
        screen.type("echo rea''dy\n")
        screen.wait_for_prompt_after("ready")
        screen.type(b"\x04")
        assert screen.wait_for_end() == 0

    def test_the_persons_terminal_modes_are_taken_over(self, ssh: SshServer) -> None:
        """The local terminal erases with ^H and does not turn carriage returns into newlines. So does the remote."""
        script = (
            "import os, subprocess, sys; master, slave = os.openpty(); "
            "subprocess.run(['stty', 'erase', '^H', '-icrnl', 'intr', '^X'], stdin=slave, check=True); "
            "subprocess.run(sys.argv[1:], stdin=slave, check=True)"
        )
        command = ssh.command("stty -a", options=("-tt",))
        result = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, timeout=30, check=True)
        assert b"erase = ^H" in result.stdout
        assert b"intr = ^X" in result.stdout
        assert b"-icrnl" in result.stdout

    def test_all_output_on_a_terminal_arrives_before_the_end(self, ssh: SshServer) -> None:
        result = ssh.ssh("seq 1 200000", options=("-tt",))
        assert result.stdout == "".join(f"{number}\r\n" for number in range(1, 200001)).encode()

    def test_a_process_that_keeps_the_terminal_open_does_not_keep_the_session(
        self, ssh: SshServer, open_screen: OpenScreen
    ) -> None:
        screen = open_screen(ssh)
        screen.type("sleep 100 & disown; echo $! > left_behind; exit\n")
        assert screen.wait_for_end() == 0
        assert ssh.ssh("kill -KILL $(cat left_behind)").returncode == 0, "it was still there"

    def test_a_process_that_goes_on_writing_to_the_terminal_does_not_keep_the_session(
        self, ssh: SshServer, open_screen: OpenScreen
    ) -> None:
        screen = open_screen(ssh)
        screen.type("yes & disown; exit 4\n")
        assert screen.wait_for_end() == 4

    def test_closing_the_connection_hangs_up_the_terminal(self, ssh: SshServer, open_screen: OpenScreen) -> None:
        hung_up = ssh.home / "hung_up"
        screen = open_screen(ssh)
        screen.type("trap 'echo yes > ~/hung_up; exit' HUP; echo rea''dy; while :; do sleep 0.1; done\n")
        screen.wait_for("ready")
        screen.process.kill()
        eventually(lambda: hung_up.exists() and hung_up.read_text() == "yes\n")

    def test_a_message_appears_at_once_in_all_open_terminals(self, ssh: SshServer, open_screen: OpenScreen) -> None:
        screens = [open_screen(ssh), open_screen(ssh)]
        for screen in screens:
            screen.type("echo rea''dy\n")
            screen.wait_for_prompt_after("ready")
        ssh.send_message("Your reservation ends in 15 minutes.")
        for screen in screens:
            screen.wait_for("*** Your reservation ends in 15 minutes. ***", within=5.0)
        ssh.send_message("Second \x1b[2Jmessage.")
        for screen in screens:
            screen.wait_for("Second  [2Jmessage.", within=5.0)
            assert screen.transcript.count(b"15 minutes") == 1

    def test_a_new_shell_is_greeted_with_the_last_message_that_still_holds(
        self, start_ssh: StartSsh, open_screen: OpenScreen
    ) -> None:
        server = start_ssh(greeting="Welcome.\nTwo GPUs.\n")
        server.send_message("older")
        server.send_message("still true")
        server.send_message("over", timedelta())
        screen = open_screen(server)
        screen.wait_for("Two GPUs.\n\n*** still true ***")
        assert "older" not in screen.text
        assert "over" not in screen.text

    def test_commands_are_not_greeted(self, ssh: SshServer) -> None:
        ssh.send_message("hello")
        assert ssh.ssh("echo only this", options=("-tt",)).stdout == b"only this\r\n"
        assert ssh.ssh(options=("-T",), stdin=b"echo only this\n").stdout == b"only this\n"


class FileContract(SshServers):
    """Files over sftp, scp and rsync."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """Files of several kinds: large, empty, nested, executable, linked, awkwardly named."""
        tree = tmp_path / "tree"
        (tree / "deep" / "deeper").mkdir(parents=True)
        (tree / "large").write_bytes(os.urandom(5_000_001))
        (tree / "empty").touch()
        (tree / "deep" / "deeper" / AWKWARD_NAME).write_text("awkward")
        (tree / "deep" / "program").write_text("#!/bin/sh\n")
        (tree / "deep" / "program").chmod(0o750)
        return tree

    @pytest.mark.parametrize("mode", ["-O", "-s"])
    def test_scp_carries_a_tree_there_and_back(self, ssh: SshServer, tree: Path, tmp_path: Path, mode: str) -> None:
        there = ssh.run("scp", mode, "-r", "-p", str(tree), f"{ssh.address}:")
        assert there.returncode == 0, there.stderr
        arrived = ssh.home / "tree"
        assert _contents(arrived) == _contents(tree)
        assert {path.stat().st_uid for path in [arrived, *arrived.rglob("*")]} == {ssh.uid}
        assert stat.S_IMODE((arrived / "deep" / "program").stat().st_mode) == 0o750
        assert int((arrived / "large").stat().st_mtime) == int((tree / "large").stat().st_mtime)
        back = ssh.run("scp", mode, "-r", f"{ssh.address}:tree", str(tmp_path / "back"))
        assert back.returncode == 0, back.stderr
        assert _contents(tmp_path / "back") == _contents(tree)

    @pytest.mark.parametrize("mode", ["-O", "-s"])
    def test_scp_says_what_is_missing(self, ssh: SshServer, tmp_path: Path, mode: str) -> None:
        result = ssh.run("scp", mode, f"{ssh.address}:nothing", str(tmp_path))
        assert result.returncode != 0
        assert b"No such file" in result.stderr

    def test_sftp_does_what_people_type(self, ssh: SshServer, tree: Path, tmp_path: Path) -> None:
        result = ssh.sftp(
            "pwd",
            "mkdir work",
            "cd work",
            f"put {tree / 'large'} copy",
            "rename copy renamed",
            "chmod 600 renamed",
            "symlink renamed link",
            "ln renamed hard",
            "ls -l",
            f"get link {tmp_path / 'fetched'}",
            "df",
        )
        assert result.returncode == 0, result.stderr
        assert ssh.inside(ssh.home).encode() in result.stdout
        work = ssh.home / "work"
        assert (tmp_path / "fetched").read_bytes() == (tree / "large").read_bytes()
        assert (work / "link").readlink() == Path("renamed")
        assert (work / "hard").stat().st_nlink == 2
        assert stat.S_IMODE((work / "renamed").stat().st_mode) == 0o600
        assert b"-rw-------" in result.stdout
        removed = ssh.sftp("rm work/link", "rm work/hard", "rm work/renamed", "rmdir work", "ls")
        assert removed.returncode == 0, removed.stderr
        assert not work.exists()

    def test_sftp_renames_over_a_file_that_is_there(self, ssh: SshServer) -> None:
        (ssh.home / "old").write_text("old")
        (ssh.home / "new").write_text("new")
        assert ssh.sftp("rename new old").returncode == 0
        assert (ssh.home / "old").read_text() == "new"

    def test_sftp_resumes_a_broken_transfer(self, ssh: SshServer, tree: Path) -> None:
        data = (tree / "large").read_bytes()
        (ssh.home / "large").write_bytes(data[:2_000_000])
        os.chown(ssh.home / "large", ssh.uid, -1)
        assert ssh.sftp(f"reput {tree / 'large'} large").returncode == 0
        assert (ssh.home / "large").read_bytes() == data

    def test_a_file_that_blocks_sftp_blocks_nobody_else_and_lets_go_with_the_client(
        self, ssh: SshServer, tmp_path: Path
    ) -> None:
        os.mkfifo(ssh.home / "fifo")
        (ssh.home / "fifo").chmod(0o666)
        stuck = subprocess.Popen(
            ["sftp", *ssh.settings(), "-P", str(ssh.port), "-b", "-", ssh.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert stuck.stdin is not None
        stuck.stdin.write(f"put /etc/hosts fifo\nget fifo {tmp_path / 'never'}\n".encode())
        stuck.stdin.flush()
        time.sleep(0.5)  # long enough to be stuck; there is nothing to see from outside
        assert ssh.ssh("echo alive").stdout == b"alive\n"
        assert children_of(ssh.pid) != []
        os.killpg(stuck.pid, signal.SIGKILL)  # with the ssh it has started
        stuck.wait()
        stuck.stdin.close()
        eventually(lambda: children_of(ssh.pid) == [])

    def test_rsync_mirrors_a_tree_and_sends_only_what_changed(self, ssh: SshServer, tree: Path, tmp_path: Path) -> None:
        if shutil.which("rsync") is None:
            pytest.skip("NOT TESTED: rsync is not installed; `make test` installs what it can, here it could not")
        if ssh.ssh("command -v rsync").returncode != 0:
            pytest.skip("NOT TESTED: rsync is not where the dev server could find it")
        shell = " ".join(["ssh", *ssh.settings(), "-p", str(ssh.port)])

        def rsync(*arguments: str) -> str:
            command = ["rsync", "-a", "--delete", "--stats", "-e", shell, *arguments]
            return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout

        rsync(f"{tree}/", f"{ssh.address}:mirror/")
        assert _contents(ssh.home / "mirror") == _contents(tree)
        (tree / "empty").unlink()
        (tree / "large").write_bytes((tree / "large").read_bytes() + b"more")
        second = rsync(f"{tree}/", f"{ssh.address}:mirror/")
        assert _contents(ssh.home / "mirror") == _contents(tree)
        assert "Number of regular files transferred: 1\n" in second
        rsync(f"{ssh.address}:mirror/", str(tmp_path / "back"))
        assert _contents(tmp_path / "back") == _contents(tree)

    def test_other_subsystems_are_refused(self, ssh: SshServer) -> None:
        assert b"subsystem request failed" in ssh.ssh("netconf", options=("-s",)).stderr


class ForwardingContract(SshServers):
    """Forwarded ports, sockets and agents, and several sessions over one connection."""

    @pytest.fixture
    def service(self) -> Iterator[int]:
        with serving_echo() as port:
            yield port

    def test_a_local_port_leads_to_the_dev_server(self, ssh: SshServer, service: int) -> None:
        port = free_port()
        with forwarding(ssh, "-L", f"{port}:localhost:{service}"):
            eventually(lambda: answers(to_port(port)))
            data = b"a" * (5 * MEBIBYTE)
            assert ask(to_port(port), data) == data.upper()

    def test_a_remote_port_leads_back_to_the_client(self, ssh: SshServer, service: int) -> None:
        with forwarding(ssh, "-R", f"0:127.0.0.1:{service}") as client:
            port = int(wait_for_line(client, r"Allocated port (\d+)")[1])
            assert ask(to_port(port)) == b"HELLO"
            data = b"b" * (5 * MEBIBYTE)
            assert ask(to_port(port), data) == data.upper()
        eventually(lambda: not answers(to_port(port)))

    @NEEDS_OTHER_ADDRESS
    @pytest.mark.parametrize("address", ["*", "0.0.0.0", "127.0.0.1", "localhost", "192.0.2.1"])
    def test_a_remote_port_is_reached_from_this_machine_alone(self, ssh: SshServer, service: int, address: str) -> None:
        port = free_port()
        with forwarding(ssh, "-R", f"{address}:{port}:127.0.0.1:{service}") as client:
            wait_for_line(client, "remote forward success")
            assert ask(to_port(port)) == b"HELLO"
            with socket.socket() as anywhere:  # fails while somebody else listens on all addresses
                anywhere.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                anywhere.bind((OTHER_ADDRESS, port))
                anywhere.listen()

    def test_a_remote_port_in_use_is_refused(self, ssh: SshServer, service: int) -> None:
        assert is_refused(ssh, "-R", f"{service}:127.0.0.1:1")

    def test_a_remote_port_can_be_given_up_and_taken_again(self, ssh: SshServer, service: int) -> None:
        port = free_port()
        control = ("-o", f"ControlPath={ssh.folder}/control")
        forward = ("-R", f"{port}:127.0.0.1:{service}")
        with forwarding(ssh, "-M", *control):
            eventually((ssh.folder / "control").exists)
            for _ in range(2):
                assert ssh.ssh(options=("-O", "forward", *forward, *control)).returncode == 0
                assert answers(to_port(port))
                assert ssh.ssh(options=("-O", "cancel", *forward, *control)).returncode == 0
                eventually(lambda: not answers(to_port(port)))

    def test_a_socks_proxy_leads_through_the_dev_server(self, ssh: SshServer, service: int) -> None:
        port = free_port()

        def through_proxy() -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            connection.sendall(b"\x05\x01\x00\x03\x09localhost" + service.to_bytes(2, "big"))
            assert connection.recv(10)[:2] == b"\x05\x00"
            return connection

        with forwarding(ssh, "-D", f"127.0.0.1:{port}"):
            eventually(lambda: answers(through_proxy))

    @pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
    def test_standard_input_and_output_can_be_a_connection(self, ssh: SshServer, service: int, name: str) -> None:
        """localhost is often two addresses, and most servers listen on one of them."""
        assert ssh.ssh(options=("-W", f"{name}:{service}"), stdin=b"jump").stdout == b"JUMP"

    def test_such_a_connection_is_over_when_both_sides_have_ended_the_other_one_first(self, ssh: SshServer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(PATIENCE)
            there = f"127.0.0.1:{listener.getsockname()[1]}"
            with ssh.start(options=("-W", there), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
                try:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"goodbye")
                    assert client.stdin is not None and client.stdout is not None
                    assert client.stdout.read() == b"goodbye"
                    client.stdin.close()
                    assert client.wait(PATIENCE) == 0
                finally:
                    client.kill()

    @pytest.mark.parametrize("address", METADATA_ADDRESSES)
    def test_nobody_is_led_to_where_clouds_tell_secrets(self, ssh: SshServer, address: str) -> None:
        result = ssh.ssh(options=("-W", f"{address}:80"), stdin=b"GET / HTTP/1.0\r\n\r\n")
        assert result.stdout == b""
        assert b"administratively prohibited" in result.stderr

    def test_a_connection_that_cannot_be_made_is_told(self, ssh: SshServer) -> None:
        result = ssh.ssh(options=("-W", f"127.0.0.1:{free_port()}"), stdin=b"jump")
        assert result.returncode != 0
        assert b"open failed" in result.stderr

    def test_a_local_socket_leads_to_one_in_the_dev_server_and_the_person_is_seen_there(self, ssh: SshServer) -> None:
        theirs, ours = ssh.folder / "theirs", ssh.folder / "ours"
        seen: list[int] = []
        with echo_service(unix_listener(theirs), seen), forwarding(ssh, "-L", f"{ours}:{ssh.inside(theirs)}"):
            eventually(lambda: answers(to_path(ours)))
        assert set(seen) == {ssh.uid}

    def test_a_remote_socket_leads_back_is_private_and_replaces_one_left_behind(
        self, ssh: SshServer, service: int
    ) -> None:
        path = ssh.folder / "remote"
        for _ in range(2):
            with forwarding(ssh, "-R", f"{ssh.inside(path)}:127.0.0.1:{service}"):
                eventually(lambda: answers(to_path(path)))
                assert path.stat().st_mode & 0o077 == 0
                assert path.stat().st_uid == ssh.uid
            eventually(lambda: not answers(to_path(path)))
            path.unlink(missing_ok=True)
            left_behind = unix_listener(path)  # the second finds a socket that nobody listens on
            os.chown(path, ssh.uid, -1)
            left_behind.close()

    def test_a_remote_socket_in_use_is_refused(self, ssh: SshServer, service: int) -> None:
        path = ssh.folder / "remote"
        forward = ("-R", f"{ssh.inside(path)}:127.0.0.1:{service}")
        with forwarding(ssh, *forward):
            eventually(lambda: answers(to_path(path)))
            assert is_refused(ssh, *forward)
            assert answers(to_path(path))

    def test_the_agent_is_forwarded_and_its_socket_goes_with_the_connection(self, ssh: SshServer) -> None:
        if shutil.which("ssh-agent") is None:
            pytest.skip("NOT TESTED: ssh-agent is not installed")
        agent_socket = ssh.folder / "agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.DEVNULL)
        try:
            eventually(agent_socket.exists)
            environment = {**os.environ, "SSH_AUTH_SOCK": str(agent_socket)}
            subprocess.run(["ssh-add", "-q", str(ssh.key)], env=environment, check=True)
            command = ["ssh", "-A", "-o", f"IdentityAgent={agent_socket}", *ssh.command()[1:]]
            script = 'echo $SSH_AUTH_SOCK; stat -c %a:%u "$(dirname $SSH_AUTH_SOCK)"; ssh-add -L'
            result = subprocess.run([*command, script], env=environment, capture_output=True, timeout=30, check=False)
            path, folder, key = result.stdout.decode().split("\n", 2)
            assert folder == f"700:{ssh.uid}"
            assert key.split()[:2] == ssh.authorized_keys.read_text().split()[:2]
            eventually(lambda: not ssh.outside(path).parent.exists())
        finally:
            _end(agent)

    def test_many_sessions_share_one_connection(self, ssh: SshServer) -> None:
        control = ("-o", f"ControlPath={ssh.folder}/control")
        with forwarding(ssh, "-M", *control):
            eventually((ssh.folder / "control").exists)
            sessions = [ssh.start(f"sleep 0.2; echo {n}", options=control, stdout=subprocess.PIPE) for n in range(20)]
            connections = {ssh.ssh("echo $SSH_CONNECTION", options=control).stdout for _ in range(2)}
            assert [session.communicate()[0] for session in sessions] == [f"{n}\n".encode() for n in range(20)]
            assert len(connections) == 1
            assert ssh.ssh("true", options=("-O", "check", *control)).returncode == 0


class SshContract(LoginContract, CommandContract, TerminalContract, FileContract, ForwardingContract):
    pass


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _unread(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    size: int = struct.unpack("i", fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)))[0]
    return size


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
