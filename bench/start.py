"""`start`: the time from request to shell, on one idle machine.

- submit → first output: POST /v1/jobs/submit, the event stream until active, the system's ssh running `echo`.
- reserve → first output: the same from the start of a `gpu-dev reserve` process.
- submit → processor: until the reservation's history shows its placement (times of one database, one clock).
"""

import http.client
import json
import subprocess
import time
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from bench.figures import percentile, report
from bench.machine import CLI, Machine, running

_ROUNDS = 30
_WARM_UP = 3


def run() -> None:
    with running() as machine:
        submits, placements = [], []
        for round_number in range(_WARM_UP + _ROUNDS):
            seconds, placed = _submit_to_output(machine)
            if round_number >= _WARM_UP:
                submits.append(seconds)
                placements.append(placed)
        reserves = [_reserve_to_output(machine) for _ in range(_WARM_UP + _ROUNDS)][_WARM_UP:]
    report("start", "submit to first ssh output, p50", percentile(submits, 0.5), "s", None)
    report("start", "submit to first ssh output, p95", percentile(submits, 0.95), "s", 0.3)
    report("start", "gpu-dev reserve process to first ssh output, p50", percentile(reserves, 0.5), "s", None)
    report("start", "gpu-dev reserve process to first ssh output, p95", percentile(reserves, 0.95), "s", 0.7)
    report("start", "submit to processor start, p50", percentile(placements, 0.5) * 1000, "ms", None)
    report("start", "submit to processor start, p99", percentile(placements, 0.99) * 1000, "ms", 50)


def _submit_to_output(machine: Machine) -> tuple[float, float]:
    key = (machine.home / ".gpu-dev" / "id_ed25519.pub").read_text().strip()
    connection = _connect(machine)
    started = time.perf_counter()
    job = _ask(connection, machine, "POST", "/v1/jobs/submit", {"duration_hours": 1, "ssh_public_keys": [key]})
    active = _until_active(connection, machine, str(job["job_id"]))
    _ssh(machine, active)
    seconds = time.perf_counter() - started
    connection.close()
    placed = _submit_to_placed(machine, str(job["job_id"]))
    _end(machine, str(job["job_id"]))
    return seconds, placed


def _reserve_to_output(machine: Machine) -> float:
    started = time.perf_counter()
    command = [*CLI, "reserve", "--gpus", "1", "--hours", "1", "--yes", "--json"]
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, check=True)
    active = json.loads(done.stdout)
    _ssh(machine, active)
    seconds = time.perf_counter() - started
    _end(machine, str(active["job_id"]))
    return seconds


def _ssh(machine: Machine, job: dict[str, Any]) -> None:
    known = machine.home / "known_hosts"
    known.write_text(f"bench {job['ssh_host_key']}\n")
    command = ["ssh", "-F", "none", "-p", str(job["node_port"]), "-i", str(machine.home / ".gpu-dev" / "id_ed25519")]
    command += ["-o", "HostKeyAlias=bench", "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    command += ["-o", "GlobalKnownHostsFile=none", f"{job['ssh_user']}@{job['node_ip']}", "echo", "hello"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "hello\n", done


def _until_active(connection: http.client.HTTPConnection, machine: Machine, job_id: str) -> dict[str, Any]:
    connection.request("GET", f"/v1/jobs/{job_id}/events", headers=_headers(machine))
    answer = connection.getresponse()
    kind = ""
    for raw in answer:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:") and kind == "job":
            job: dict[str, Any] = json.loads(line[5:])
            if job["status"] == "active":
                return job
            assert job["status"] in ("pending", "queued", "preparing"), job
    raise AssertionError("the stream ended before the reservation was active")


def _submit_to_placed(machine: Machine, job_id: str) -> float:
    connection = _connect(machine)
    connection.request("GET", f"/v1/jobs/{job_id}/events", headers=_headers(machine))
    times: dict[str, datetime] = {}
    for raw in connection.getresponse():
        if raw.startswith(b"data:"):
            data = json.loads(raw[5:])
            if "kind" in data:
                times.setdefault(data["kind"], datetime.fromisoformat(data["at"]))
        if "preparing" in times:
            break
    connection.close()
    return (times["preparing"] - times["submitted"]).total_seconds()


def _end(machine: Machine, job_id: str) -> None:
    connection = _connect(machine)
    _ask(connection, machine, "POST", f"/v1/jobs/{job_id}/cancel", None)
    deadline = time.monotonic() + 10
    while _ask(connection, machine, "GET", f"/v1/jobs/{job_id}", None)["released_at"] is None:
        assert time.monotonic() < deadline, "it was not released within 10 s"
        time.sleep(0.02)
    connection.close()


def _connect(machine: Machine) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(machine.api_url).netloc, timeout=30)


def _headers(machine: Machine) -> dict[str, str]:
    return {"Authorization": f"Bearer {machine.api_key}", "Content-Type": "application/json"}


def _ask(
    connection: http.client.HTTPConnection, machine: Machine, method: str, path: str, body: dict[str, Any] | None
) -> dict[str, Any]:
    connection.request(method, path, json.dumps(body) if body is not None else None, _headers(machine))
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status < 300, (answer.status, text)
    result: dict[str, Any] = json.loads(text)
    return result
