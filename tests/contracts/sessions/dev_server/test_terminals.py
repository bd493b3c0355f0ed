"""Messages on people's terminals, and what the log says of sessions, in the program inside pods."""

import os
import signal
import subprocess
from pathlib import Path

import asyncssh
import pytest

from contracts.ssh.terminals import FULL_SCREEN_PROGRAM
from support.ports import free_port
from support.ssh.dev_server_container import CONTAINER, Builder, DevServer
from support.ssh.ssh_server import OpenScreen

pytestmark = pytest.mark.slow


async def test_signals_and_breaks_of_a_client_reach_the_program(container: DevServer) -> None:
    async with asyncssh.connect(
        *("127.0.0.1", container.port), username="dev", client_keys=[str(container.key)], known_hosts=None
    ) as connection:
        process = await connection.create_process("trap 'echo got it; exit 9' USR1; echo ready; while :; do :; done")
        assert await process.stdout.readline() == "ready\n"
        process.send_signal("USR1")
        assert await process.stdout.readline() == "got it\n"
        assert (await process.wait()).exit_status == 9


def test_a_message_leaves_a_line_that_is_being_typed_as_it_was(server: DevServer, open_screen: OpenScreen) -> None:
    screens = [open_screen(server), open_screen(server)]
    for screen in screens:
        screen.type("echo rea''dy\n")
        screen.wait_for_prompt_after("ready")
        screen.type("half a comm")
        screen.wait_for("half a comm")
    told = server.tell("Your reservation ends in 15 minutes.\n")
    assert (told.returncode, told.stdout) == (0, b"shown in 2 terminals\n")
    for screen in screens:
        screen.wait_for("\nready\n*** Your reservation ends in 15 minutes. ***\n", within=60.0)
        assert screen.text.splitlines()[-1].endswith("$ half a comm")
        screen.type("and; echo $COLUMNS\n")
        screen.wait_for("half a command; echo $COLUMNS\n")
        screen.wait_for("\n80\n")
    server.tell("Second \x1b[2Jmessage.\nof two lines")
    for screen in screens:
        screen.wait_for("*** Second  [2Jmessage. ***\n*** of two lines ***\n", within=60.0)
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
    screen = open_screen(server, "perl program", options=("-t",))
    screen.wait_until(lambda: screen.text.endswith("bottom"))
    before = screen.text
    assert server.tell("Soon.").stdout == b"shown in 1 terminals\n"
    screen.wait_until(lambda: b"*** Soon. ***" in screen.transcript)
    screen.wait_until(lambda: screen.text == before)
    screen.type("q")
    assert screen.wait_for_end() == 6


def test_whoever_wants_no_greeting_sees_messages_all_the_same(builder: Builder, open_screen: OpenScreen) -> None:
    builder.write("greeting", "Welcome.\n")
    server = builder.start()
    server.tell("still true")
    (server.home / ".hushlogin").touch()
    screen = open_screen(server)
    screen.wait_for("*** still true ***")
    assert "Welcome" not in screen.text


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
    assert b"did not accept the message" in result.stderr


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
