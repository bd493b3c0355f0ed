"""`api`: latency at a steady 300 requests a second with 1,000 live and 10,000 past reservations, on this machine.

Live reservations are rows on a simulated cluster: 600 run on 100 nodes of 8 GPUs and fill them, 400 are queued.
PostgreSQL, the API process and the processor are real; 90 % of the requests read, 10 % submit. Requests are sent at
their scheduled time, whether or not earlier ones were answered, and timed from then, so that a stall is not hidden.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.figures import percentile, report
from bench.http_load import Load, Request
from gpudev.adapters.postgres.database.migrator import migrate
from gpudev.adapters.postgres.database.pool import connect
from gpudev.adapters.postgres.stores import open_stores
from gpudev.domain.access.users import Role
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import DatabaseSettings, Settings

_NODES, _RUNNING, _WAITING, _PAST = 100, 600, 400, 10_000
_RATE, _SECONDS = 300, 60
_PORT = 7491
_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGtRZ0cQ4sHO3yCqJwq3xq2yXo3Qb1gG3g2T9nH3lQkA bench"


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-") as folder, _database(Path(folder)) as database:
        environment = _environment(database, Path(folder))
        memory_idle = _resident(environment)
        secret = asyncio.run(_fill(database))
        with _control_plane(environment) as (api, processor):
            ids = asyncio.run(_live_ids(database))
            memory_full = _settled_memory([api, processor])
            load = asyncio.run(_load(secret, ids))
    reads = [seconds for kind, seconds in load if kind == "read"]
    submits = [seconds for kind, seconds in load if kind == "submit"]
    everything = reads + submits
    report("api", "requests answered", len(everything), "requests", _RATE * _SECONDS, at_most=False)
    report("api", "read latency, p50", percentile(reads, 0.5) * 1000, "ms", None)
    report("api", "read latency, p95", percentile(reads, 0.95) * 1000, "ms", None)
    report("api", "submit latency, p50", percentile(submits, 0.5) * 1000, "ms", None)
    report("api", "submit latency, p95", percentile(submits, 0.95) * 1000, "ms", None)
    report("api", "latency of reads and submits, p95", percentile(everything, 0.95) * 1000, "ms", 15)
    live = _RUNNING + _WAITING
    report("api", "control plane memory per live reservation", (memory_full - memory_idle) / live, "MB", 0.1)


@contextlib.contextmanager
def _database(folder: Path) -> Iterator[DatabaseSettings]:
    server = EmbeddedPostgres(folder / "postgres")
    server.initialise()
    server.start()
    try:
        asyncio.run(migrate(server.database_settings()))
        yield server.database_settings()
    finally:
        server.stop()


def _environment(database: DatabaseSettings, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
        "GPU_DEV_HOME": str(folder / "state"),
        "GPU_DEV_API_PORT": str(_PORT),
    }


@contextlib.contextmanager
def _control_plane(environment: dict[str, str]) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    commands = (["gpudev.main", "api"], ["bench.simulated_processor", str(_NODES)])
    started = [
        subprocess.Popen([sys.executable, "-m", *command], env=environment, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        _await_ready()
        yield psutil.Process(started[0].pid), psutil.Process(started[1].pid)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)


def _await_ready(port: int = _PORT) -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=2):
            return
        if time.monotonic() > deadline:
            raise SystemExit("the benchmark's API did not become ready")
        time.sleep(0.1)


def _resident(environment: dict[str, str]) -> float:
    """Memory of the idle control plane."""
    with _control_plane(environment) as parts:
        return _settled_memory(list(parts))


def _settled_memory(parts: list[psutil.Process]) -> float:
    time.sleep(3)
    return sum(part.memory_info().rss for part in parts) / 1e6


async def _fill(database: DatabaseSettings) -> str:
    stores = open_stores(Settings(database=database))
    user = await stores.users.add_user("bench", Role.USER)
    issued = await stores.users.issue_key(user.user_id, None, "bench")
    await stores.close()
    connection = await connect(database)
    await connection.execute(_FILL_PAST, user.user_id, _KEY, _PAST)
    await connection.execute(_FILL_RUNNING, user.user_id, _KEY, _RUNNING)
    await connection.execute(_FILL_SHARES, _NODES)
    await connection.execute(_FILL_WAITING, user.user_id, _KEY, _WAITING)
    await connection.execute("ANALYZE")
    await connection.close()
    return issued.secret


async def _live_ids(database: DatabaseSettings) -> list[str]:
    connection = await connect(database)
    rows = await connection.fetch("SELECT reservation_id FROM reservations WHERE released_at IS NULL")
    await connection.close()
    return [str(row["reservation_id"]) for row in rows]


async def _load(secret: str, ids: list[str]) -> list[tuple[str, float]]:
    chance = random.Random(1)
    body = json.dumps({"gpu_type": "h100", "gpu_count": 1, "duration_hours": 2, "disk_name": "none",
                       "ssh_public_keys": [_KEY]}).encode()  # fmt: skip

    def next_request() -> Request:
        dice = chance.random()
        if dice < 0.1:
            return Request("submit", "POST", "/v1/jobs/submit", body)
        if dice < 0.7:
            return Request("read", "GET", f"/v1/jobs/{chance.choice(ids)}")
        if dice < 0.9:
            return Request("read", "GET", "/v1/jobs?limit=20")
        return Request("read", "GET", "/v1/gpu/availability")

    load = Load("127.0.0.1", _PORT, secret)
    return await load.steady(next_request, rate=_RATE, seconds=_SECONDS)


_FILL_PAST = """
    INSERT INTO reservations (reservation_id, user_id, gpu_type, gpu_count, duration_hours, ssh_public_keys, status,
        version, created_at, preparing_at, launched_at, expires_at, reservation_ended, released_at, pod_name)
    SELECT id, $1, 'h100', 1, 2, ARRAY[$2::text], 'expired', 4, now() - i * interval '1 minute',
           now() - i * interval '1 minute', now() - i * interval '1 minute', now() - i * interval '1 minute',
           now() - i * interval '1 minute', now() - i * interval '1 minute', 'gpu-dev-' || left(id::text, 8)
    FROM (SELECT gen_random_uuid() AS id, i FROM generate_series(1, $3::int) i) past
"""
_FILL_RUNNING = """
    INSERT INTO reservations (reservation_id, user_id, gpu_type, gpu_count, duration_hours, ssh_public_keys, status,
        version, created_at, preparing_at, launched_at, expires_at, pod_name, node_ip, node_port, ssh_user,
        ssh_host_key)
    SELECT gen_random_uuid(), $1, 'h100', CASE WHEN i <= 400 THEN 1 ELSE 2 END, 8, ARRAY[$2::text], 'active', 3,
           now(), now(), now(), now() + interval '3 hours' + i * interval '30 seconds', 'bench-running-' || i,
           '127.0.0.1', 22, 'dev', 'ssh-ed25519 AAAA'
    FROM generate_series(1, $3::int) i
"""
_FILL_SHARES = """
    WITH placed AS (
        SELECT reservation_id, gpu_count, sum(gpu_count) OVER (ORDER BY seq) - gpu_count AS first
        FROM reservations WHERE status = 'active'
    )
    INSERT INTO reservation_shares (reservation_id, rank, node, units, gpu_indices)
    SELECT reservation_id, 0, 'node-' || lpad((first / 8)::text, 3, '0'), gpu_count,
           ARRAY(SELECT generate_series(first % 8, first % 8 + gpu_count - 1))::int[]
    FROM placed WHERE first / 8 < $1
"""
_FILL_WAITING = """
    INSERT INTO reservations (reservation_id, user_id, gpu_type, gpu_count, duration_hours, ssh_public_keys, status,
        version, created_at, pod_name)
    SELECT gen_random_uuid(), $1, 'h100', (ARRAY[1, 2, 4, 8])[1 + i % 4], 4, ARRAY[$2::text], 'queued', 2, now(),
           'bench-waiting-' || i
    FROM generate_series(1, $3::int) i
"""
