"""`auth`: the cost of authentication, and how soon a revoked key stops working.

A real PostgreSQL and two API processes, on this machine. One endpoint that answers from memory (the cluster status,
cached for a moment) is requested alternately from the normal API and from a second process in which it needs no key
(bench/open_api.py). The difference is the cost of the key. Key lookups are counted by PostgreSQL's index scans. Keys
are revoked as by `gpu-dev-server keys revoke`, also while the API's listening connection is being cut.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.api import _PORT, _await_ready, _database, _environment
from bench.figures import percentile, report
from gpudev.adapters.postgres.database.listener import ACCESS_CHANGES_CHANNEL
from gpudev.adapters.postgres.database.pool import connect
from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.domain.access.users import Role
from gpudev.settings import DatabaseSettings, Settings

_ROUNDS, _WARM_UP = 5_000, 500
_REVOCATIONS, _CUT_OFF = 20, 6
_PATH = "/v1/cluster/status"
_OPEN_PORT = _PORT + 1


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-") as folder, _database(Path(folder)) as database:
        environment = _environment(database, Path(folder))
        processes = [
            _serve(environment, _PORT, "gpudev.main", "api"),
            _serve(environment, _OPEN_PORT, "bench.open_api", f"GET {_PATH}"),
        ]
        try:
            _await_ready(_PORT)
            _await_ready(_OPEN_PORT)
            asyncio.run(_measure(database, open_api=processes[1]))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)


def _serve(environment: dict[str, str], port: int, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**environment, "GPU_DEV_API_PORT": str(port)},
        stderr=subprocess.DEVNULL,
    )


async def _measure(database: DatabaseSettings, open_api: subprocess.Popen[bytes]) -> None:
    stores = open_stores(Settings(database=database))
    user = await stores.users.add_user("bench", Role.USER)
    secret = (await stores.users.issue_key(user.user_id, None, "bench")).secret
    await _compare(stores, secret)
    open_api.terminate()
    delays = [await _revoke(stores, user.user_id) for _ in range(_REVOCATIONS)]
    report("auth", "revoked key still worked for, median", percentile(delays, 0.5), "s", None)
    report("auth", "revoked key still worked for, at most", max(delays), "s", 1)
    delays_while_cut = [await _revoke(stores, user.user_id, database) for _ in range(_CUT_OFF)]
    report("auth", "the same while its listener is cut off, at most", max(delays_while_cut), "s", 1)
    await stores.close()


async def _compare(stores: Stores, secret: str) -> None:
    """Alternates between both, so that other load on the machine affects them equally."""
    async with _client(secret) as keyed, _client(None, _OPEN_PORT) as opened:
        async with _client(None) as stranger:
            if await stranger.ask(_PATH) != 401:
                raise SystemExit(f"GET {_PATH} needs no key; nothing to compare")
        for _ in range(_WARM_UP):
            await keyed.ask(_PATH)
            await opened.ask(_PATH)
        before, began = await _lookups(stores), time.perf_counter()
        times: dict[str, list[float]] = {"keyed": [], "open": []}
        for _ in range(_ROUNDS):
            for name, client in (("open", opened), ("keyed", keyed)):
                sent_at = time.perf_counter()
                status = await client.ask(_PATH)
                times[name].append(time.perf_counter() - sent_at)
                if status != 200:
                    raise SystemExit(f"GET {_PATH} ({name}) answered {status}")
        seconds, lookups = time.perf_counter() - began, await _lookups(stores) - before
    without, with_key = (percentile(times[name], 0.5) * 1000 for name in ("open", "keyed"))
    report("auth", f"GET {_PATH} without a door, p50", without, "ms", None)
    report("auth", f"GET {_PATH} with a key, p50", with_key, "ms", None)
    report("auth", "overhead of a key, p50", with_key - without, "ms", 0.5)
    report("auth", "lookups per authenticated request", lookups / _ROUNDS, "queries", 0.01)
    report("auth", f"lookups in {seconds:.0f} s", lookups, "queries", None)


async def _revoke(stores: Stores, user_id: int, cut_off: DatabaseSettings | None = None) -> float:
    """How long after it was revoked a key still worked."""
    secret = (await stores.users.issue_key(user_id, None, "bench")).secret  # type: ignore[arg-type]
    (newest, *_) = await stores.administration.list_keys("bench")
    async with _client(secret) as client:
        deadline = time.perf_counter() + 1.5  # until the key is cached and the listener is connected
        while time.perf_counter() < deadline:
            await client.ask(_PATH)
            await asyncio.sleep(0.01)
        if cut_off is not None:
            await _cut(cut_off)
        await stores.administration.revoke_key(newest.key_id)
        revoked = worked = time.perf_counter()
        while await client.ask(_PATH) == 200:
            worked = time.perf_counter()
        return worked - revoked


async def _cut(database: DatabaseSettings) -> None:
    """End the session that listens for changes of access, as a broken network would."""
    connection = await connect(database)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE $1 OR query = 'SELECT 1'",
        f"%LISTEN%{ACCESS_CHANGES_CHANNEL}%",
    )
    await connection.close()


async def _lookups(stores: Stores) -> int:
    await asyncio.sleep(1.5)  # PostgreSQL's sessions report their counts once a second
    async with stores.pool.acquire() as connection:
        return int(
            await connection.fetchval(
                "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'api_keys_key_hash_key'"
            )
        )


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str | None) -> None:
        self._reader, self._writer = reader, writer
        self._head = "Host: bench\r\n" + (f"Authorization: Bearer {secret}\r\n" if secret else "") + "\r\n"

    async def ask(self, path: str) -> int:
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._head}".encode())
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        await self._reader.readexactly(length)
        return int(answer[9:12])


@contextlib.asynccontextmanager
async def _client(secret: str | None, port: int = _PORT) -> AsyncIterator[_Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield _Client(reader, writer, secret)
    finally:
        writer.close()
