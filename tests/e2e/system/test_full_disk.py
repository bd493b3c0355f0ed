"""A full disk: everything goes on as far as it can, says why it cannot, and is well by itself when there is space."""

import contextlib
import http.client
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from support.polling import eventually
from support.system.embedded_system import System
from support.system.full_disk import PAGE, SmallDisk, small_disk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk"),
]
NODES = '[[node]]\nname = "one"\ngpu_type = "h100"\ngpus = 8\n'


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str | None
    retry_after: str | None
    body: dict[str, Any]


@dataclass
class Caller:
    port: int
    key: str

    def ask(self, method: str, path: str, body: object = None) -> Answer | None:
        """None: nobody listens."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                response = connection.getresponse()
                content = response.read()
        except (OSError, http.client.HTTPException):
            return None
        assert content.startswith(b"{"), f"{response.status} {content!r}"
        return Answer(
            response.status, response.getheader("Content-Type"), response.getheader("Retry-After"), json.loads(content)
        )

    def submit(self, hours: float = 1.0) -> Answer | None:
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH2vJrJ5nq3vH1Yk0qW1kqWm3b8m3Z1yqk8hXq3p9C0a"
        name = "x" * 60  # so that rows soon need another page
        ask = {
            "gpu_type": "h100",
            "gpu_count": 8,
            "disk_name": "none",
            "ssh_public_keys": [key],
            "name": name,
            "duration_hours": hours,
        }
        return self.ask("POST", "/v1/jobs/submit", ask)

    def cancel_all(self) -> None:
        listed = eventually(lambda: self.ask("GET", "/v1/jobs?limit=200"))
        for job in listed.body["jobs"]:
            done = eventually(lambda job=job: self.ask("POST", f"/v1/jobs/{job['job_id']}/cancel"))
            assert done.status in (200, 202, 409), done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def disk(home: Path) -> Iterator[SmallDisk]:
    with small_disk(home / "state", megabytes=300) as disk:
        yield disk


@pytest.fixture(scope="module")
def small(disk: SmallDisk, home: Path) -> Iterator[System]:
    running = System.start(home, nodes=NODES)
    yield running
    running.stop()
    assert running.processes_with(str(home)) == [], "processes were left behind"


@pytest.fixture
def caller(small: System) -> Iterator[Caller]:
    address = json.loads((small.home / "state" / "run" / "system.json").read_text())["api_url"]
    caller = Caller(urlsplit(address).port or 0, small.add_user("ada"))
    yield caller
    caller.cancel_all()


def pad(log: Path) -> None:
    """Up to the end of a page: the next line needs another one."""
    # It has ended there if there is no space for that: since the last time, or somebody wrote meanwhile.
    with contextlib.suppress(OSError), log.open("ab", buffering=0) as file:
        file.write(b" " * (PAGE - 1 - log.stat().st_size % PAGE) + b"\n")


def log_events(log: Path) -> list[dict[str, Any]]:
    """Every line that is whole. No whole one may be glued to another."""
    events = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            assert not ends_in_event(line), f"two lines in one: {line!r}"
    return [event for event in events if isinstance(event, dict)]


def ends_in_event(line: str) -> bool:
    for found in re.finditer(r'\{"', line):
        with contextlib.suppress(ValueError):
            return "timestamp" in json.loads(line[found.start() :])
    return False


def find_processor(system: System) -> int | None:
    found = [pid for pid in system.processes_with("gpudev.main processor") if _is_of(pid, system)]
    return found[0] if found else None


def _is_of(pid: int, system: System) -> bool:
    try:
        return psutil.Process(pid).environ().get("GPU_DEV_HOME") == system.environment["GPU_DEV_HOME"]
    except psutil.Error:
        return False


def test_everything_answers_again_by_itself_when_there_is_space(small: System, disk: SmallDisk, caller: Caller) -> None:
    logs, supervisor = small.home / "state" / "logs", small.pid("supervisor")
    before = caller.submit(hours=0.01)
    assert before is not None
    short = wait_for_status(caller, before.body["job_id"], "active")
    answers: list[Answer] = []

    def is_not_ready() -> bool:
        """Meanwhile people go on submitting."""
        if (answer := caller.submit()) is not None:
            answers.append(answer)
        health = caller.ask("GET", "/health/ready")
        return health is not None and health.body["checks"]["database"] == "cannot write, its disk is full"

    with disk.full():
        for name in ("supervisor", "api", "processor"):
            pad(logs / f"{name}.log")
        eventually(is_not_ready, "ready is claimed with a full disk")
        eventually(lambda: is_not_ready() and any(answer.status == 503 for answer in answers), "nothing was rejected")
        os.kill(small.pid("processor"), signal.SIGKILL)
        began = time.monotonic()
        eventually(lambda: is_not_ready() and time.monotonic() - began > 3)
        assert small.pid("supervisor") == supervisor
        assert psutil.pid_exists(supervisor)
        assert caller.ask("GET", "/health/live") is not None
    assert {answer.status for answer in answers} <= {202, 503}
    for answer in answers:
        if answer.status == 503:
            assert answer.content_type == "application/problem+json"
            assert answer.retry_after is not None
            assert answer.body["code"] == "unavailable"

    eventually(small.ready, "it is not ready again")
    eventually(lambda: find_processor(small), "the processor was not started again")
    assert small.pid("supervisor") == supervisor, "nobody had to start it again"
    wait_for_status(caller, short["job_id"], "expired")
    caller.cancel_all()
    after = eventually(caller.submit)
    assert after.status == 202, after
    wait_for_status(caller, after.body["job_id"], "active")
    eventually(lambda: small.find_pid("processor") == find_processor(small), "its pid file is missing")
    assert any(event.get("event") == "log.lines_dropped" for event in log_events(logs / "api.log"))
    reasons = [event.get("reason", "") for event in log_events(logs / "supervisor.log")]
    assert not any("preexec_fn" in reason for reason in reasons)
    log_events(logs / "processor.log")


@pytest.mark.parametrize("part", ["postgres", "api"])
def test_a_part_that_dies_on_a_full_disk_is_back_when_there_is_space(
    small: System, disk: SmallDisk, caller: Caller, part: str
) -> None:
    supervisor, before = small.pid("supervisor"), small.pid(part)
    with disk.full():
        pad(small.home / "state" / "logs" / "supervisor.log")
        os.kill(before, signal.SIGKILL)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 3 and not psutil.pid_exists(before))
        assert not small.ready()
    eventually(small.ready, f"it is not ready again after the end of {part}")
    assert small.pid("supervisor") == supervisor
    eventually(lambda: small.find_pid(part) not in (None, before), "its pid file is missing")
    answer = eventually(caller.submit)
    assert answer.status == 202, answer
    wait_for_status(caller, answer.body["job_id"], "active")


def wait_for_status(caller: Caller, job_id: str, status: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        answer = caller.ask("GET", f"/v1/jobs/{job_id}")
        return answer.body if answer is not None and answer.body.get("status") == status else None

    return eventually(look, f"{job_id} did not become {status}")
