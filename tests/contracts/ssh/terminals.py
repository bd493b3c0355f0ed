"""People at a terminal: sizes, full-screen programs, keys."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from contracts.ssh.servers import SshServers
from support.polling import eventually
from support.ssh.ssh_server import (
    OpenScreen,
    SshServer,
    StartSsh,
    opening_screens,
)

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
            screen.wait_for("*** Your reservation ends in 15 minutes. ***", within=60.0)
        ssh.send_message("Second \x1b[2Jmessage.")
        for screen in screens:
            screen.wait_for("Second  [2Jmessage.", within=60.0)
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
