"""`proxy`: the cost of ssh through HTTPS, compared with direct ssh in the same run on the same machine.

- rsync of one file of 1 GB and of 10,000 small files: the best of several rounds per route, alternating.
- added latency per keystroke: one line to `cat` and back, alternating between both routes.
- 200 real ssh clients at once through the proxy: how many connect, and each is used while all are open.
- 500 sessions, each echoing 4 KB ten times a second, through a separate proxy process; the rest of the machine
  generates the
  load. Tokens are fake there; everything else is real.
"""

import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.figures import percentile, report
from bench.machine import CLI, ROOT, Machine, running
from bench.proxy_process import JOB

_TURNS = 3
_KEYS = 300
_SMALL_FILES = 10_000
_LARGE = 1_000_000_000
_CLIENTS = 200
_SESSIONS = 500
_CHUNK = 4096
_EVERY_S = 0.1
_FOR_S = 20.0


def run() -> None:
    with running() as machine:
        job = machine.job("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")
        ways = {"straight": _ssh(machine, job, proxy=False), "proxy": _ssh(machine, job, proxy=True)}
        _keystrokes(machine, ways)
        _rsync(machine, ways)
        _many_clients(machine, ways["proxy"])
    uvloop.run(_many_sessions())


def _ssh(machine: Machine, job: dict[str, Any], *, proxy: bool) -> list[str]:
    known = machine.home / "known_hosts"
    known.write_text(f"bench {job['ssh_host_key']}\n")
    command = ["ssh", "-F", "none", "-p", str(job["node_port"]), "-i", str(machine.home / ".gpu-dev" / "id_ed25519")]
    command += ["-o", "HostKeyAlias=bench", "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    command += ["-o", "GlobalKnownHostsFile=none", "-l", "dev"]
    if proxy:
        command += ["-o", f"ProxyCommand={shlex.join([*CLI, 'proxy-command', str(job['job_id'])])}"]
    return command


def _keystrokes(machine: Machine, ways: dict[str, list[str]]) -> None:
    shells = {
        way: subprocess.Popen(
            [*ssh, "127.0.0.1", "cat"],
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        for way, ssh in ways.items()
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(_KEYS + 20):
        for way, shell in shells.items():
            assert shell.stdin is not None
            assert shell.stdout is not None
            began = time.perf_counter()
            shell.stdin.write(b"x\n")
            assert shell.stdout.read(2) == b"x\n"
            if number >= 20:
                took[way].append(time.perf_counter() - began)
            time.sleep(0.002)  # faster than anyone types
    for shell in shells.values():
        shell.terminate()
        shell.wait()
    straight, proxied = (percentile(took[way], 0.5) * 1000 for way in ("straight", "proxy"))
    report("proxy", "keystroke and echo, straight ssh, p50", straight, "ms", None)
    report("proxy", "added per keystroke, p50", proxied - straight, "ms", 1)
    report(
        "proxy",
        "added per keystroke, p95",
        (percentile(took["proxy"], 0.95) - percentile(took["straight"], 0.95)) * 1000,
        "ms",
        None,
    )


def _rsync(machine: Machine, ways: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-files-") as folder:
        large, small = Path(folder) / "large", Path(folder) / "small"
        large.mkdir()
        with (large / "file").open("wb") as file:
            for _ in range(_LARGE // 1_000_000):
                file.write(os.urandom(1_000_000))
        for number in range(_SMALL_FILES):
            path = small / str(number % 100) / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(number % 4096))
        for source, name in ((large, "1 GB"), (small, f"{_SMALL_FILES} small files")):
            best = dict.fromkeys(ways, float("inf"))
            for turn in range(_TURNS):
                # The first one has colder caches, so alternate the order too.
                for way in ways if turn % 2 == 0 else reversed(ways):
                    best[way] = min(best[way], _copy(machine, ways[way], source))
            report("proxy", f"rsync of {name}, straight ssh", best["straight"], "s", None)
            report("proxy", f"rsync of {name}, through the proxy", best["proxy"], "s", None)
            report("proxy", f"rsync of {name}, added", (best["proxy"] / best["straight"] - 1) * 100, "%", 5)


def _copy(machine: Machine, ssh: list[str], source: Path) -> float:
    subprocess.run([*ssh, "127.0.0.1", "rm -rf copied"], env=machine.environment, check=True)
    began = time.perf_counter()
    command = ["rsync", "-a", "--whole-file", "-e", shlex.join(ssh), f"{source}/", "127.0.0.1:copied/"]
    subprocess.run(command, env=machine.environment, check=True)
    return time.perf_counter() - began


def _many_clients(machine: Machine, ssh: list[str]) -> None:
    began = time.perf_counter()
    shells = [
        subprocess.Popen(
            [*ssh, "-o", "ConnectTimeout=120", "127.0.0.1", "exec cat"],
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        for _ in range(_CLIENTS)
    ]
    came_in = sum(_echoes(shell, b"in\n") for shell in shells)
    seconds = time.perf_counter() - began
    still_there = sum(_echoes(shell, b"still\n") for shell in shells)
    for shell in shells:
        shell.terminate()
        shell.wait()
    report("proxy", f"{_CLIENTS} ssh clients at once: came in", came_in, "clients", _CLIENTS, at_most=False)
    report("proxy", f"{_CLIENTS} ssh clients at once: spoken to", still_there, "clients", _CLIENTS, at_most=False)
    report("proxy", f"{_CLIENTS} ssh clients at once: until all were in", seconds, "s", None)


def _echoes(shell: "subprocess.Popen[bytes]", word: bytes) -> bool:
    assert shell.stdin is not None
    assert shell.stdout is not None
    try:
        shell.stdin.write(word)
    except BrokenPipeError:
        return False
    came = b""
    while len(came) < len(word) and (part := shell.stdout.read(len(word) - len(came))):
        came += part
    return came == word


async def _many_sessions() -> None:
    echo = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0, backlog=2048)
    port = echo.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.proxy_process",
        str(port),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert process.stdout is not None
    proxy_port = int(await process.stdout.readline())
    try:
        clients = []
        for _ in range(_SESSIONS):
            clients.append(await _Client.open(proxy_port))
        until = time.perf_counter() + _FOR_S
        await asyncio.gather(
            *(client.talk(until, index / _SESSIONS * _EVERY_S) for index, client in enumerate(clients))
        )
    finally:
        process.terminate()
        await process.wait()
        echo.close()
    latencies = [latency for client in clients for latency in client.latencies]
    dropped = sum(client.is_lost for client in clients)
    carried = len(latencies) * _CHUNK / _FOR_S / 1e6
    report("proxy", f"{_SESSIONS} sessions of 40 KB/s: echoed", carried, "MB/s", None)
    report("proxy", f"{_SESSIONS} sessions of 40 KB/s: dropped", dropped, "sessions", 0)
    report("proxy", f"{_SESSIONS} sessions of 40 KB/s: echo, p50", percentile(latencies, 0.5) * 1000, "ms", None)
    report("proxy", f"{_SESSIONS} sessions of 40 KB/s: echo, p95", percentile(latencies, 0.95) * 1000, "ms", 50)


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Client(asyncio.Protocol):
    """One session, which gets its own bytes back."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.is_lost = False
        self._opened = asyncio.get_running_loop().create_future()
        self._came = b""
        self._answered = asyncio.Event()
        self._awaited = 0

    @classmethod
    async def open(cls, port: int) -> "_Client":
        transport, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        transport.write(
            f"GET /v1/jobs/{JOB}/ssh HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "Authorization: Bearer gpudevt_0123456789abcdef\r\n\r\n".encode()
        )
        assert (await client._opened).startswith(b"HTTP/1.1 101")
        return client

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._opened.done():
            self._came += data
            if b"\r\n\r\n" in self._came:
                self._opened.set_result(self._came)
            return
        self._awaited -= len(data)
        if self._awaited <= 0:  # all of it, plus a few bytes of frame headers
            self._answered.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = time.perf_counter() < self._until
        self._answered.set()

    async def talk(self, until: float, delay: float) -> None:
        self._until = until
        message = b"\x82\xfe" + _CHUNK.to_bytes(2, "big") + b"\0\0\0\0" + b"x" * _CHUNK
        due = time.perf_counter() + delay
        while not self.is_lost and due < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self._answered.clear()
            self._awaited = _CHUNK
            self._transport.write(message)
            began = time.perf_counter()
            await self._answered.wait()
            self.latencies.append(time.perf_counter() - began)
            due += _EVERY_S
        self._until = 0.0
