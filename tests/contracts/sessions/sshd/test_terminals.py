"""Interactive sessions, as a person at a terminal has them."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpudev.adapters.local.sshd.terminal_messages import TerminalMessage, append_message
from support.ssh.sshd_process import Screen, Server, StartServer, eventually

pytestmark = pytest.mark.slow

OpenScreen = Callable[..., Screen]

# One process that says when it is there: a shell that is just starting another would miss the signal.
WAITING_PROGRAM = (
    f"""{shlex.quote(sys.executable)} -c 'import time; print("rea" + "dy", flush=True); time.sleep(100)'"""
)

FULL_SCREEN_PROGRAM = """
import curses

def main(screen):
    curses.curs_set(0)
    while True:
        rows, columns = screen.getmaxyx()
        screen.erase()
        screen.addstr(0, 0, f"{columns}x{rows}", curses.A_REVERSE)
        screen.addstr(rows - 1, 0, "bottom")
        screen.addstr(rows // 2, columns // 2, "m\\u00fctte")
        screen.refresh()
        if screen.getch() == ord("q"):
            return

curses.wrapper(main)
"""


@pytest.fixture
def open_screen() -> Iterator[OpenScreen]:
    screens: list[Screen] = []

    def open_one(server: Server, *arguments: str, options: tuple[str, ...] = (), **size: int) -> Screen:
        screen = Screen(server.command(*arguments, options=options), **size)
        screens.append(screen)
        return screen

    yield open_one
    for screen in screens:
        screen.close()


def test_a_login_shell_answers_and_gives_its_exit_code(server: Server, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type("echo shell=$0 term=$TERM; test -t 0 && tty\n")
    screen.wait_for("shell=-bash term=xterm-256color")
    screen.wait_for("/dev/")
    screen.type("exit 5\n")
    assert screen.wait_for_end() == 5


def test_the_terminal_has_the_size_of_the_persons_window_and_follows_it(
    server: Server, open_screen: OpenScreen
) -> None:
    screen = open_screen(server, columns=101, rows=33)
    screen.type("while sleep 0.1; do stty size; done\n")
    screen.wait_for("33 101")
    screen.resize(77, 22)
    screen.wait_for("22 77")


def test_a_full_screen_program_is_drawn_and_redrawn_when_the_window_changes(
    server: Server, open_screen: OpenScreen
) -> None:
    program = server.home / "full_screen.py"
    program.write_text(FULL_SCREEN_PROGRAM)
    screen = open_screen(server, shlex.join([sys.executable, str(program)]), options=("-t",), columns=90, rows=30)
    screen.wait_for("90x30")
    screen.wait_for("mütte")
    assert screen.text.splitlines()[29] == "bottom"
    screen.resize(60, 20)
    screen.wait_for("60x20")
    screen.wait_for("bottom")
    assert screen.text.splitlines()[19] == "bottom"
    screen.type("q")
    assert screen.wait_for_end() == 0


def test_ctrl_c_interrupts_the_program_and_not_the_shell(server: Server, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type(f"{WAITING_PROGRAM}\n")
    screen.wait_for("ready")
    screen.type(b"\x03")
    screen.type("echo code=$?\n")
    screen.wait_for("code=130")


def test_ctrl_z_and_job_control_work(server: Server, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type(f"{WAITING_PROGRAM}\n")
    screen.wait_for("ready")
    screen.type(b"\x1a")
    screen.wait_for("Stopped")
    screen.type("kill %1; echo jobs''=done\n")
    screen.wait_for("jobs=done")


def test_ctrl_d_ends_the_shell(server: Server, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type("echo rea''dy\n")
    screen.wait_for("ready")
    screen.type(b"\x04")
    assert screen.wait_for_end() == 0


def test_the_persons_terminal_modes_are_taken_over(server: Server) -> None:
    """The local terminal erases with ^H and does not turn carriage returns into newlines; so does the remote one."""
    script = (
        "import os, subprocess, sys; master, slave = os.openpty(); "
        "subprocess.run(['stty', 'erase', '^H', '-icrnl', 'intr', '^X'], stdin=slave, check=True); "
        "subprocess.run(sys.argv[1:], stdin=slave, check=True)"
    )
    command = server.command("stty -a", options=("-tt",))
    result = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, timeout=30, check=True)
    assert b"erase = ^H" in result.stdout
    assert b"intr = ^X" in result.stdout
    assert b"-icrnl" in result.stdout


def test_all_output_on_a_terminal_arrives_before_the_end(server: Server) -> None:
    result = server.ssh("seq 1 200000", options=("-tt",))
    assert result.stdout == "".join(f"{number}\r\n" for number in range(1, 200001)).encode()


def test_a_process_that_keeps_the_terminal_open_does_not_keep_the_session(
    server: Server, open_screen: OpenScreen
) -> None:
    screen = open_screen(server)
    screen.type("sleep 100 & disown; echo $! > left_behind; exit\n")
    assert screen.wait_for_end() == 0
    os.kill(int((server.home / "left_behind").read_text()), signal.SIGKILL)  # it was still there


def test_a_process_that_goes_on_writing_to_the_terminal_does_not_keep_the_session(
    server: Server, open_screen: OpenScreen
) -> None:
    screen = open_screen(server)
    screen.type("yes & disown; exit 4\n")
    assert screen.wait_for_end() == 4


def test_closing_the_connection_hangs_up_the_terminal(server: Server, open_screen: OpenScreen) -> None:
    hung_up = server.home / "hung_up"
    screen = open_screen(server)
    screen.type(f"trap 'echo yes > {hung_up}; exit' HUP; echo rea''dy; while :; do sleep 0.1; done\n")
    screen.wait_for("ready")
    screen.process.kill()
    eventually(lambda: hung_up.exists() and hung_up.read_text() == "yes\n")


def test_a_message_appears_at_once_in_all_open_terminals(server: Server, open_screen: OpenScreen) -> None:
    screens = [open_screen(server), open_screen(server)]
    for screen in screens:
        screen.type("echo rea''dy\n")
        screen.wait_for("ready")
    append_message(str(server.messages), TerminalMessage("Your reservation ends in 15 minutes."))
    for screen in screens:
        screen.wait_for("*** Your reservation ends in 15 minutes. ***", within=5.0)
    append_message(str(server.messages), TerminalMessage("Second \x1b[2Jmessage."))
    for screen in screens:
        screen.wait_for("Second  [2Jmessage.", within=5.0)
        assert screen.transcript.count(b"15 minutes") == 1


def test_a_new_shell_is_greeted_with_the_last_message_that_still_holds(
    start_server: StartServer, open_screen: OpenScreen, tmp_path: Path
) -> None:
    motd = tmp_path / "motd"
    motd.write_text("Welcome.\nTwo GPUs.\n")
    server = start_server(motd_path=str(motd))
    soon = datetime.now(UTC) + timedelta(hours=1)
    past = datetime.now(UTC) - timedelta(minutes=1)
    for message in (TerminalMessage("older", soon), TerminalMessage("still true", soon), TerminalMessage("over", past)):
        append_message(str(server.messages), message)
    screen = open_screen(server)
    screen.wait_for("Two GPUs.\n\n*** still true ***")
    assert "older" not in screen.text
    assert "over" not in screen.text


def test_commands_are_not_greeted(server: Server) -> None:
    append_message(str(server.messages), TerminalMessage("hello"))
    assert server.ssh("echo only this", options=("-tt",)).stdout == b"only this\r\n"
    assert server.ssh(options=("-T",), stdin=b"echo only this\n").stdout == b"only this\n"
