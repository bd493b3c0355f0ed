"""What came from outside into the services' own log: one event is one line, and no key is in it."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

FORGED = 'x\n{"event": "login.done", "username": "root"}\r\x1b[2K\x1b[1A\u2028\u202e'
KEY = "gpudev_" + "Zk3" * 14
TOKEN = "gpudevt_" + "Qw9" * 14
WRITE = """
import logging, os, sys
import structlog
from gpudev.bootstrap.service_runtime import configure_logging
from gpudev.settings import load_settings
configure_logging(load_settings({"GPU_DEV_LOG_FORMAT": sys.argv[1]}))
text = os.environ["FORGED"] + os.environ["SECRETS"]
structlog.get_logger().info("http.request", path=text, user=text)
try:
    raise ValueError(text)
except ValueError:
    structlog.get_logger().exception("http.unexpected_error", path=text)
try:
    raise ValueError(text)
except ValueError:
    logging.getLogger("uvicorn.error").exception("path %s", text)
"""


def written(log_format: str) -> str:
    environment = {**os.environ, "FORGED": FORGED, "SECRETS": f" {KEY} {TOKEN}", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WRITE, log_format], env=environment, capture_output=True, check=True, timeout=60
    )
    return done.stderr.decode()


def test_a_forged_line_stays_within_the_event_it_came_with() -> None:
    *lines, rest = written("json").split("\n")
    assert rest == ""
    assert [json.loads(line)["event"] for line in lines] == ["http.request", "http.unexpected_error", "library.log"]
    told = [json.loads(line).get("path") or json.loads(line)["message"].removeprefix("path ") for line in lines]
    assert all(text.startswith("x\n{") for text in told), "it is told, and it is data"


def test_a_terminal_shows_it_as_text() -> None:
    first = written("console").split("\n")[0]
    assert "http.request" in first
    assert "login.done" in first, "within the line of the event that brought it"
    assert not {"\r", "\x1b[2K", "\x1b[1A", "\u2028", "\u202e"} & set(first)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_key_in_the_wrong_place_is_not_written(log_format: str) -> None:
    said = written(log_format)
    assert KEY not in said
    assert TOKEN not in said
    assert KEY[:16] in said, "its first letters are, as in every list of keys"
