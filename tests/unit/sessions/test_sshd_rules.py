"""The server's small decisions, without a server."""

import json
import signal
import socket
import termios
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncssh
import pytest

from gpudev.adapters.local.sshd.channel_session import signal_name
from gpudev.adapters.local.sshd.server import is_this_machine, read_authorized_keys
from gpudev.adapters.local.sshd.sshd_config import SshdConfig, session_environment
from gpudev.adapters.local.sshd.terminal import Attributes, with_modes
from gpudev.adapters.local.sshd.terminal_messages import (
    TerminalMessage,
    TerminalMessages,
    append_message,
    format_for_terminal,
    parse_messages,
)
from support.clock import ManualClock

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_a_message_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    messages = (TerminalMessage("fünf\nMinuten"), TerminalMessage("until noon", NOON))
    for message in messages:
        append_message(str(path), message)
    assert parse_messages(path.read_bytes().splitlines()) == messages


@pytest.mark.parametrize(
    "damaged",
    [b"", b"no json", b"[]", b'"text"', b"{}", b'{"text": 3}', b'{"text": "x", "valid_until": "tomorrow"}', b"\xff"],
)
def test_a_damaged_line_is_passed_over(damaged: bytes) -> None:
    good = json.dumps({"text": "good"}).encode()
    assert parse_messages([good, damaged, good]) == (TerminalMessage("good"), TerminalMessage("good"))


def test_a_time_without_a_zone_is_taken_as_utc() -> None:
    line = json.dumps({"text": "x", "valid_until": "2030-01-01T12:00:00"}).encode()
    assert parse_messages([line]) == (TerminalMessage("x", NOON),)


def test_a_message_cannot_command_the_terminal() -> None:
    shown = format_for_terminal(TerminalMessage("a\x1b]0;title\x07b\nc"))
    assert shown == b"\r\n*** a ]0;title b ***\r\n*** c ***\r\n"


def test_the_greeting_is_the_last_message_that_still_holds(tmp_path: Path, clock: ManualClock) -> None:
    path = str(tmp_path / "messages")
    board = TerminalMessages(path, clock)
    assert board.banner() == b""
    append_message(path, TerminalMessage("for ever"))
    append_message(path, TerminalMessage("for an hour", clock.now() + timedelta(hours=1)))
    assert b"for an hour" in board.banner()
    clock.move(hours=1)
    assert b"for ever" in board.banner()


def test_the_greeting_is_found_at_the_end_of_a_long_file(tmp_path: Path, clock: ManualClock) -> None:
    path = str(tmp_path / "messages")
    for number in range(3000):
        append_message(path, TerminalMessage(f"message number {number}"))
    assert b"message number 2999 " in TerminalMessages(path, clock).banner()


def _attributes() -> Attributes:
    return [0, 0, 0, 0, termios.B9600, termios.B9600, [bytes([0]) for _ in range(32)]]


def test_modes_set_and_clear_exactly_what_they_name() -> None:
    attributes = _attributes()
    attributes[3] = termios.ECHO | termios.ISIG
    modes = {
        asyncssh.PTY_ECHO: 0,
        asyncssh.PTY_ICANON: 1,
        asyncssh.PTY_ONLCR: 1,
        asyncssh.PTY_VINTR: 24,
        asyncssh.PTY_VQUIT: 255,
        asyncssh.PTY_OP_OSPEED: 38400,
        asyncssh.PTY_CS8: 1,
    }
    changed = with_modes(attributes, modes)
    characters = changed[6]
    assert isinstance(characters, list)
    assert changed[3] == termios.ICANON | termios.ISIG
    assert changed[1] == termios.ONLCR
    assert changed[2] == termios.CS8
    assert (changed[4], changed[5]) == (termios.B9600, termios.B38400)
    assert characters[termios.VINTR] == b"\x18"
    assert characters[termios.VQUIT] == b"\0"


@pytest.mark.parametrize("modes", [{99: 1}, {asyncssh.PTY_OP_ISPEED: 12345}, {asyncssh.PTY_CS7: 0}, {}])
def test_modes_this_system_does_not_know_change_nothing(modes: dict[int, int]) -> None:
    assert with_modes(_attributes(), modes) == _attributes()


def test_a_control_character_out_of_range_is_switched_off() -> None:
    characters = with_modes(_attributes(), {asyncssh.PTY_VINTR: 2**32 - 1})[6]
    assert isinstance(characters, list)
    assert characters[termios.VINTR] == b"\0"


def test_the_servers_environment_is_stronger_than_the_clients_and_the_sessions_facts_than_both() -> None:
    config = SshdConfig("key", "keys", "/home/dev", "messages", environment={"LANG": "C", "PATH": "/opt"})
    client = {b"LANG": b"de", b"LC_TIME": b"fr", b"LC_": b"x", b"LC_A;B": b"x", b"HOME": b"/", b"COLORTERM": b"\0"}
    environment = session_environment(config, "/bin/sh", client, {"TERM": "xterm"})
    assert environment[b"LANG"] == b"C"
    assert environment[b"PATH"] == b"/opt"
    assert environment[b"LC_TIME"] == b"fr"
    assert environment[b"HOME"] == b"/home/dev"
    assert environment[b"TERM"] == b"xterm"
    assert not {b"LC_", b"LC_A;B", b"COLORTERM"} & environment.keys()


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGTERM, "TERM"),
        (signal.SIGKILL, "KILL"),
        (signal.SIGBUS, "SIGBUS@openssh.com"),
        (40, "SIG40@openssh.com"),
    ],
)
def test_a_signal_is_named_as_the_protocol_does(number: int, name: str) -> None:
    assert signal_name(number) == name


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "0.0.0.0"])
def test_this_machine_is_known_by_its_addresses(address: str) -> None:
    assert is_this_machine(socket.AF_INET, address)
    assert not is_this_machine(socket.AF_INET, "192.0.2.1")


def test_no_keys_file_means_no_keys(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
    assert read_authorized_keys(str(tmp_path / "nothing")).validate(key, "", "127.0.0.1") is None
    (tmp_path / "keys").write_bytes(b"garbage\n" + key.export_public_key())
    assert read_authorized_keys(str(tmp_path / "keys")).validate(key, "", "127.0.0.1") is not None


def test_the_host_key_is_not_shown_when_the_configuration_is() -> None:
    assert "secret" not in repr(SshdConfig("secret", "keys", "/home/dev", "messages"))
