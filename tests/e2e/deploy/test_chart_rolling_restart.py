"""A rolling restart of the API as the chart orders it, under load: nobody's request fails. A new one is ready before an
old one drains and ends."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role
from gpudev.settings import DatabaseSettings
from support.deploy.helm_chart import Helm, Object, containers
from support.polling import eventually_async
from support.ports import free_port
from support.system.embedded_system import SERVER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_PER_SECOND = 50
_AT_ONCE = 20
_DRAIN_SECONDS = 0.3
"""Here the balancer knows at once; in a cluster it takes seconds, and the chart waits longer."""


async def test_no_request_fails_while_every_api_pod_is_replaced(
    helm: Helm, database: DatabaseSettings, stores: Stores, tmp_path: Path
) -> None:
    deployment = helm.render().get("Deployment", "api-service")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    user = await stores.users.add_user("ada", Role.USER)
    key = (await stores.users.issue_key(user.user_id, None, "load")).secret
    pods = ApiPods(deployment, database, tmp_path)
    try:
        await pods.add()
        await pods.add()
        stop = asyncio.Event()
        load = asyncio.create_task(_load(pods, key, stop))
        for old in list(pods.ready):
            await pods.add()
            await pods.remove(old)
        stop.set()
        answers = await load
    finally:
        pods.kill_all()
    assert set(answers) == {"200"}, answers
    assert answers["200"] > _AT_ONCE
    assert set(pods.ended) <= {0, -signal.SIGTERM}, "they ended when asked to, and well"


class ApiPods:
    """Processes, and what a Service knows of them."""

    def __init__(self, deployment: Object, database: DatabaseSettings, folder: Path) -> None:
        [self._container] = containers(deployment["template"])
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GPU_DEV_", "POSTGRES_"))},
            "HOME": str(folder),
            "GPU_DEV_CLUSTER": "kubernetes",
            "POSTGRES_HOST": database.host,
            "POSTGRES_PORT": str(database.port),
            "POSTGRES_USER": database.user,
            "POSTGRES_DB": database.database,
        }
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.ready: list[int] = []
        self.ended: list[int] = []
        self._turns = itertools.count()

    async def add(self) -> None:
        """Until its readiness probe says yes."""
        port = self._spawn()
        path = self._container["readinessProbe"]["httpGet"]["path"]

        async def is_ready() -> bool:
            assert self._processes[port].poll() is None, (self._folder / f"api-{port}.log").read_text()
            return await _get(port, path) == "200"

        await eventually_async(is_ready, within=180, every=0.1)
        self.ready.append(port)

    def _spawn(self) -> int:
        port = free_port()
        with (self._folder / f"api-{port}.log").open("wb") as log:
            self._processes[port] = subprocess.Popen(
                [*SERVER.command, *self._container["args"]],
                env={**self._environment, "GPU_DEV_API_PORT": str(port)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return port

    async def remove(self, port: int) -> None:
        """Out of the Service, then preStop, then SIGTERM."""
        self.ready.remove(port)
        assert self._container["lifecycle"]["preStop"]["exec"]["command"][0] == "sleep"
        await asyncio.sleep(_DRAIN_SECONDS)  # the preStop hook's own pause
        process = self._processes.pop(port)
        process.send_signal(signal.SIGTERM)
        self.ended.append(await asyncio.to_thread(process.wait, 60))

    def next(self) -> int:
        return self.ready[next(self._turns) % len(self.ready)]

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


async def _load(pods: ApiPods, key: str, stop: asyncio.Event) -> Counter[str]:
    """So many a second; fewer where the machine is too busy for that, which is not what this is about."""
    asked: list[asyncio.Task[str]] = []
    while not stop.is_set():
        if sum(not one.done() for one in asked[-_AT_ONCE:]) < _AT_ONCE:
            asked.append(asyncio.create_task(_get(pods.next(), "/v1/jobs", key)))
        await asyncio.sleep(1 / _PER_SECOND)
    return Counter(await asyncio.gather(*asked))


async def _get(port: int, path: str, key: str = "") -> str:
    """The status, or what went wrong. A connection of its own, as every command of the client has."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", f"Authorization: Bearer {key}", "", ""]
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write("\r\n".join(lines).encode())
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1].decode() if head else "no answer"
    if status == "200":
        json.loads(body)  # whole
    return status
