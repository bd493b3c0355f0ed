"""What a dev server says of the end of the command is a stranger's text."""

import json

import pytest

from gpudev.domain.reservations.command_exit import CommandExit, clean_last_lines, parse_command_exit


def test_what_was_told_is_told_on_in_words() -> None:
    end = parse_command_exit(json.dumps({"exit_code": 3, "last": "epoch 1\nout of memory\n"}))
    assert end == CommandExit(3, ("epoch 1", "out of memory"))
    assert end.message == "the command ended with exit code 3\nLast lines:\nepoch 1\nout of memory"
    assert CommandExit(0).message == "the command ended with exit code 0"
    assert CommandExit(None).message == "the command was killed from outside"


@pytest.mark.parametrize(
    "told",
    [
        "",
        "no JSON",
        "null",
        "[]",
        "{}",
        '{"exit_code": 0}',
        '{"exit_code": true, "last": ""}',
        '{"exit_code": "0", "last": ""}',
        '{"exit_code": 256, "last": ""}',
        '{"exit_code": -1, "last": ""}',
        '{"exit_code": 0, "last": 7}',
        b"\xff\xfe{",
    ],
)
def test_what_tells_of_no_end_is_none(told: str | bytes) -> None:
    assert parse_command_exit(told) is None


def test_a_terminal_is_told_nothing_it_would_obey() -> None:
    assert clean_last_lines("\x1b[2Jgone\x07\r\n\u202eturned\n") == ("[2Jgone", "turned")


def test_of_a_progress_bar_its_last_state_is_left() -> None:
    assert clean_last_lines("start\n 10%\r 50%\r100%\r\ndone") == ("start", "100%", "done")


def test_there_are_few_lines_and_the_last_ones() -> None:
    lines = clean_last_lines("\n".join(f"line {number}" for number in range(1000)))
    assert len(lines) == 12
    assert lines[-1] == "line 999"
    long = clean_last_lines("\n".join("x" * 10_000 for _ in range(50)))
    assert 0 < sum(map(len, long)) <= 1500
