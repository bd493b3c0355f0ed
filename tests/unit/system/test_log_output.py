"""A line that cannot be logged is dropped and counted, and spoils no other line."""

import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from gpudev.log_output import (
    LineLoggerFactory,
    LineOutput,
    dropped_as_json,
    dropped_as_text,
    make_standard_error_lossy,
    open_log_file,
)
from support.system.full_disk import room_for


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "api.log"


@pytest.fixture
def output(file: Path) -> Iterator[LineOutput]:
    with file.open("ab") as opened:
        yield LineOutput(opened.fileno(), dropped_as_text)


def test_a_full_disk_is_no_error_of_whoever_logs() -> None:
    with open("/dev/full", "ab", buffering=0) as full:
        output = LineOutput(full.fileno(), dropped_as_text)
        output.write_line(b"one")
        output.write_line(b"two")
    assert output.dropped == 2


def test_a_closed_descriptor_is_no_error_either(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    os.close(descriptor)
    output = LineOutput(descriptor, dropped_as_text)
    output.write_line(b"one")
    assert output.dropped == 1


def test_the_line_after_a_cut_one_begins_on_a_fresh_line_and_says_how_many_are_missing(
    file: Path, output: LineOutput
) -> None:
    output.write_line(b"before")
    with room_for(10):
        for line in (b"cut in the middle", b"lost", b"lost too"):
            output.write_line(line)
        assert file.read_bytes() == b"before\ncut"
    output.write_line(b"after")
    output.write_line(b"and on")
    assert file.read_text().splitlines() == [
        "before",
        "cut",
        "3 earlier log lines could not be written",
        "after",
        "and on",
    ]


def test_without_a_cut_line_there_is_no_empty_one(file: Path, output: LineOutput) -> None:
    output.write_line(b"before")
    with room_for(7):
        output.write_line(b"lost")
    output.write_line(b"after")
    assert file.read_text() == "before\n1 earlier log line could not be written\nafter\n"


def test_wherever_the_space_ends_every_whole_line_is_read_and_every_lost_one_counted(tmp_path: Path) -> None:
    for at_first, then in itertools.product(range(1, 30), range(1, 90)):
        file = tmp_path / f"{at_first}-{then}.log"
        with file.open("ab") as opened:
            output = LineOutput(opened.fileno(), dropped_as_text)
            with room_for(at_first):
                for number in range(4):
                    output.write_line(b"line %d" % number)
            with room_for(file.stat().st_size + then):
                output.write_line(b"line 4")
            output.write_line(b"line 5")
        lines = file.read_text().splitlines()
        whole = [line for line in lines if re.fullmatch(r"line \d", line)]
        reported = [int(line.split()[0]) for line in lines if line.endswith("could not be written")]
        assert whole[-1] == "line 5", file
        assert len(whole) + sum(reported) == 6, file


def test_events_are_dropped_and_counted_as_json(file: Path) -> None:
    with file.open("ab") as opened:
        factory = LineLoggerFactory(dropped_as_json, opened.fileno())
        log = structlog.wrap_logger(factory(), processors=[structlog.processors.JSONRenderer()])
        with room_for(10):
            log.warning("reservation.queued", position=3)
            log.error("reservation.failed")
        log.info("reservation.active")
    cut, dropped, active = file.read_text().splitlines()
    assert cut == '{"position'
    assert json.loads(dropped) | {"timestamp": ""} == {
        "count": 2,
        "event": "log.lines_dropped",
        "level": "warning",
        "timestamp": "",
    }
    assert json.loads(active) == {"event": "reservation.active"}


def test_a_traceback_on_standard_error_is_dropped_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        make_standard_error_lossy()
        try:
            raise ValueError("anything")
        except ValueError:
            traceback.print_exc()
        sys.stderr.flush()


@pytest.mark.parametrize(
    ("left", "expected"),
    [(None, ""), (b"", ""), (b"whole\n", "whole\n"), (b'{"event": "cu', '{"event": "cu\n')],
)
def test_the_next_process_begins_on_a_fresh_line(file: Path, left: bytes | None, expected: str) -> None:
    if left is not None:
        file.write_bytes(left)
    with open_log_file(file) as opened:
        opened.write(b"started\n")
    assert file.read_text() == expected + "started\n"


def test_a_full_disk_does_not_keep_the_next_process_from_its_log(file: Path) -> None:
    file.write_bytes(b"cut")
    with room_for(3):
        opened = open_log_file(file)
    with opened:
        LineOutput(opened.fileno(), dropped_as_text).write_line(b"started")
    assert file.read_bytes() == b"cut\nstarted\n"


@pytest.mark.parametrize("describe", [dropped_as_json, dropped_as_text])
def test_the_count_is_in_one_line(describe: Callable[[int], str]) -> None:
    assert "7" in describe(7)
    assert "\n" not in describe(7)
