"""Interactive sessions, as a person at a terminal has them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncssh
import pytest

from support.fixtures.dev_server import OpenScreen
from support.ports import free_port
from support.ssh.dev_server_container import CONTAINER, Builder, DevServer
from support.ssh.sshd_process import eventually

pytestmark = pytest.mark.slow

# Unlike some programs it cannot miss a change of size that comes just before it waits for a key.
FULL_SCREEN_PROGRAM = """
draw() {
    set -- $(stty size)
    printf '\\033[H\\033[2J%s x %s' "$2" "$1"
    printf '\\033[%s;1Hbottom' "$1"
}
trap draw WINCH
draw
while :; do
    read -rsn1 -t 0.1 key
    if [ "$key" = q ]; then exit 6; fi
done
"""
WAITING_PROGRAM = "sh -c 'echo rea''dy; exec sleep 100'"


def test_a_login_shell_answers_and_gives_its_exit_code(server: DevServer, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type("echo shell=$0 term=$TERM; test -t 0 && tty\n")
    screen.wait_for("shell=-bash term=xterm-256color")
    screen.wait_for("/dev/pts/")
    screen.type("exit 5\n")
    assert screen.wait_for_end() == 5


def test_the_terminal_belongs_to_the_person(server: DevServer) -> None:
    told = server.ssh('test "$(tty)" = "$SSH_TTY" && stat -c %u:%a "$SSH_TTY"', options=("-tt",)).stdout
    uid, mode = told.decode().strip().split(":")
    assert int(uid) == server.uid
    assert int(mode, 8) & 0o007 == 0


def test_the_terminal_has_the_size_of_the_persons_window_and_follows_it(
    server: DevServer, open_screen: OpenScreen
) -> None:
    screen = open_screen(server, columns=101, rows=33)
    screen.type("while sleep 0.1; do stty size; done\n")
    screen.wait_for("33 101")
    screen.resize(77, 22)
    screen.wait_for("22 77")


def test_a_full_screen_program_is_drawn_and_redrawn_when_the_window_changes(
    server: DevServer, open_screen: OpenScreen
) -> None:
    (server.home / "program").write_text(FULL_SCREEN_PROGRAM)
    screen = open_screen(server, "bash program", options=("-t",), columns=80, rows=24)
    screen.wait_for("80 x 24")
    screen.wait_until(lambda: screen.text.splitlines()[23:] == ["bottom"])
    screen.resize(100, 40)
    screen.wait_for("100 x 40")
    screen.wait_until(lambda: screen.text.splitlines()[39:] == ["bottom"])
    screen.type("q")
    assert screen.wait_for_end() == 6


def test_ctrl_c_interrupts_the_program_and_not_the_shell(server: DevServer, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type(f"{WAITING_PROGRAM}\n")
    screen.wait_for("ready")
    screen.type(b"\x03")
    screen.type("echo code=$?\n")
    screen.wait_for("code=130")


def test_ctrl_z_and_job_control_work(server: DevServer, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type(f"{WAITING_PROGRAM}\n")
    screen.wait_for("ready")
    screen.type(b"\x1a")
    screen.wait_for("Stopped")
    screen.type("kill %1; echo jobs''=done\n")
    screen.wait_for("jobs=done")


def test_ctrl_d_ends_the_shell(server: DevServer, open_screen: OpenScreen) -> None:
    screen = open_screen(server)
    screen.type("echo rea''dy\n")
    screen.wait_for_prompt_after("ready")
    screen.type(b"\x04")
    assert screen.wait_for_end() == 0


def test_the_persons_terminal_modes_are_taken_over(container: DevServer) -> None:
    """The local terminal erases with ^H and does not turn carriage returns into newlines; so does the remote one."""
    script = (
        "import os, subprocess, sys; master, slave = os.openpty(); "
        "subprocess.run(['stty', 'erase', '^H', '-icrnl', 'intr', '^X'], stdin=slave, check=True); "
        "subprocess.run(sys.argv[1:], stdin=slave, check=True)"
    )
    command = container.command("stty -a", options=("-tt",))
    result = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, timeout=30, check=True)
    assert b"erase = ^H" in result.stdout
    assert b"intr = ^X" in result.stdout
    assert b"-icrnl" in result.stdout


def test_all_output_on_a_terminal_arrives_before_the_end(server: DevServer) -> None:
    result = server.ssh("seq 1 200000", options=("-tt",))
    assert result.stdout == "".join(f"{number}\r\n" for number in range(1, 200001)).encode()


def test_a_process_that_keeps_the_terminal_open_does_not_keep_the_session(
    server: DevServer, open_screen: OpenScreen
) -> None:
    screen = open_screen(server)
    screen.type("trap '' HUP; sleep 100 & disown; exit\n")
    assert screen.wait_for_end() == 0
    assert server.ssh("pgrep -x sleep >&2; pkill -x sleep -u $(id -u)").returncode == 0  # it was still there


def test_a_process_that_goes_on_writing_to_the_terminal_does_not_keep_the_session(
    server: DevServer, open_screen: OpenScreen
) -> None:
    screen = open_screen(server)
    screen.type("yes & disown; exit 4\n")
    assert screen.wait_for_end() == 4


def test_closing_the_connection_hangs_up_the_terminal(server: DevServer, open_screen: OpenScreen) -> None:
    hung_up = server.home / "hung_up"
    screen = open_screen(server)
    screen.type("trap 'echo yes > ~/hung_up; exit' HUP; echo rea''dy; while :; do sleep 0.1; done\n")
    screen.wait_for("ready")
    screen.process.kill()
    eventually(lambda: hung_up.exists() and hung_up.read_text() == "yes\n")


async def test_signals_and_breaks_of_a_client_reach_the_program(container: DevServer) -> None:
    async with asyncssh.connect(
        *("127.0.0.1", container.port), username="dev", client_keys=[str(container.key)], known_hosts=None
    ) as connection:
        process = await connection.create_process("trap 'echo got it; exit 9' USR1; echo ready; while :; do :; done")
        assert await process.stdout.readline() == "ready\n"
        process.send_signal("USR1")
        assert await process.stdout.readline() == "got it\n"
        assert (await process.wait()).exit_status == 9


def test_a_message_appears_at_once_in_all_open_terminals(server: DevServer, open_screen: OpenScreen) -> None:
    screens = [open_screen(server), open_screen(server)]
    for screen in screens:
        screen.type("echo rea''dy\n")
        screen.wait_for_prompt_after("ready")
        screen.type("half a comm")
        screen.wait_for("half a comm")
    told = server.tell("Your reservation ends in 15 minutes.\n")
    assert (told.returncode, told.stdout) == (0, b"shown in 2 terminals\n")
    for screen in screens:
        screen.wait_for("\nready\n*** Your reservation ends in 15 minutes. ***\n", within=5.0)
        assert screen.text.splitlines()[-1].endswith("$ half a comm")
        screen.type("and; echo $COLUMNS\n")
        screen.wait_for("half a command; echo $COLUMNS\n")
        screen.wait_for("\n80\n")
    server.tell("Second \x1b[2Jmessage.\nof two lines")
    for screen in screens:
        screen.wait_for("*** Second  [2Jmessage. ***\n*** of two lines ***\n", within=5.0)
        assert screen.transcript.count(b"15 minutes") == 1


@pytest.mark.parametrize("lines_before", [0, 3, 60])
def test_a_message_wider_than_the_screen_hides_nothing(
    container: DevServer, open_screen: OpenScreen, lines_before: int
) -> None:
    screen = open_screen(container, columns=40, rows=12)
    screen.type(f"clear; seq {lines_before}; echo rea''dy\n")
    screen.wait_for_prompt_after("ready")
    screen.type("typed")
    screen.wait_for("$ typed")
    container.tell("0123456789" * 6)
    screen.wait_for("\n" + "*** " + "0123456789" * 3 + "012345\n" + "6789" + "0123456789" * 2 + " ***\n")
    before, after = screen.text.split("*** 0123")[0].splitlines(), screen.text.splitlines()[-1]
    assert before[-1] == "ready"
    assert after.endswith("$ typed")
    screen.type(" and more")
    screen.wait_for("$ typed and more")


def test_a_full_screen_program_draws_itself_anew_after_a_message(server: DevServer, open_screen: OpenScreen) -> None:
    (server.home / "program").write_text(FULL_SCREEN_PROGRAM)
    screen = open_screen(server, "bash program", options=("-t",))
    screen.wait_until(lambda: screen.text.endswith("bottom"))
    before = screen.text
    assert server.tell("Soon.").stdout == b"shown in 1 terminals\n"
    screen.wait_until(lambda: b"*** Soon. ***" in screen.transcript)
    screen.wait_until(lambda: screen.text == before)
    screen.type("q")
    assert screen.wait_for_end() == 6


def test_a_new_shell_is_greeted_with_the_last_message_that_still_holds(
    builder: Builder, open_screen: OpenScreen
) -> None:
    builder.write("greeting", "Welcome.\nTwo GPUs.\n")
    server = builder.start()
    server.tell("older", "--greets-for", "1h")
    server.tell("still true")
    server.tell("over", "--greets-for", "0s")
    screen = open_screen(server)
    screen.wait_for("Two GPUs.\n\n*** still true ***")
    assert "older" not in screen.text
    assert "over" not in screen.text
    (server.home / ".hushlogin").touch()
    screen = open_screen(server)
    screen.wait_for("*** still true ***")
    assert "Welcome" not in screen.text


def test_commands_are_not_greeted(server: DevServer) -> None:
    server.tell("hello")
    assert server.ssh("echo only this", options=("-tt",)).stdout == b"only this\r\n"
    assert server.ssh(options=("-T",), stdin=b"echo only this\n").stdout == b"only this\n"


def test_a_terminal_that_nobody_reads_keeps_no_message_from_the_others(
    container: DevServer, open_screen: OpenScreen
) -> None:
    stuck = container.start("yes", options=("-tt",), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert stuck.stdout is not None
    assert stuck.stdout.read(2)
    screen = open_screen(container)
    screen.type("echo rea''dy\n")
    screen.wait_for("ready")
    os.kill(stuck.pid, signal.SIGSTOP)
    for number in range(40):
        assert container.tell(f"number {number}").stdout == b"shown in 2 terminals\n"
    screen.wait_for("number 39")
    os.kill(stuck.pid, signal.SIGKILL)
    stuck.wait()
    stuck.stdout.close()


def test_only_the_control_plane_can_tell(container: DevServer) -> None:
    """In the container that is root: a person without sudo cannot pretend to be it."""
    result = container.ssh(f"echo hello | /gpudev/bin/gpudev-devserver tell --port {container.port}")
    assert result.returncode == 1
    assert b"did not take the message" in result.stderr


def test_telling_where_nobody_listens_or_nothing_at_all_is_an_error(server: DevServer) -> None:
    assert server.tell("  \n").returncode == 1
    port, server.port = server.port, free_port()
    assert b"no dev server" in server.tell("hello").stderr
    server.port = port


def test_the_log_says_who_came_and_holds_nothing_they_typed(server: DevServer) -> None:
    server.ssh("echo my-secret-word")
    log = Path(server.log).read_text()
    assert "login.accepted" in log
    assert "my-secret-word" not in log
    if server.mode != CONTAINER:
        assert "does not run as root" in log
