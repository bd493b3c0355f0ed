"""A whole control plane in this process, over a real PostgreSQL and real dev servers in plain folders, behind a real
web server: what a browser meets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.app import create_app
from gpudev.api.http.connection_limits import limited_http_protocol
from gpudev.bootstrap.processor import make_processor
from gpudev.bootstrap.proxy import open_jupyter_proxy, open_ssh_sessions
from gpudev.domain.access.users import Role
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.access import AuditEntry, AuditQuery
from gpudev.ports.clock import SystemClock
from gpudev.settings import Settings
from local.harness import NODES
from support.api import PublishedKeys, api_services, public_key, until

MOST_PER_USER = 24


@dataclass
class Place:
    url: str
    stores: Stores
    state: Path
    trail: AuditTrail

    async def audited(self, action: str) -> list[AuditEntry]:
        await self.trail.flush()
        return await self.stores.audit_log.find_entries(AuditQuery(action=action))

    async def secret(self, name: str) -> str:
        users = self.stores.users
        user = await users.find_user(name) or await users.add_user(name, Role.USER)
        return (await users.issue_key(user.user_id, None, "test")).secret

    async def as_user(self, name: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {await self.secret(name)}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=30)

    async def active(self, client: httpx2.AsyncClient) -> str:
        """A reservation's id, once its dev server runs."""
        body = {"gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": "none"}
        answer = await client.post("/v1/jobs/submit", json=body)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["job_id"]
        await self.until(client, f"/v1/jobs/{job_id}", "status", "active")
        return job_id

    def home(self, job_id: str) -> Path:
        return self.state / "servers" / job_id / "home"

    async def until(self, client: httpx2.AsyncClient, path: str, field: str, wanted: str) -> dict[str, Any]:
        async with asyncio.timeout(90):
            while True:
                told: dict[str, Any] = (await client.get(path)).json()
                if told[field] == wanted:
                    return told
                assert told[field] != "failed", told
                await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def _running(coroutine: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def place_settings(settings: Settings) -> Settings:
    return replace(settings, api_port=0, proxy=replace(settings.proxy, most_per_user=MOST_PER_USER))


@pytest.fixture
async def place(stores: Stores, place_settings: Settings, tmp_path: Path) -> AsyncIterator[Place]:
    clock, settings = SystemClock(), place_settings
    cluster = LocalCluster(settings.state_dir, NODES, clock, mode=IsolationMode.PLAIN)
    await cluster.start()
    changes = PostgresReservationChanges(settings.database)
    changes.start()
    services = api_services(stores, changes, PublishedKeys(), clock, settings)
    processor = make_processor(stores, cluster, clock, settings.timing)
    async with (
        _running(processor.run()),
        open_ssh_sessions(services) as sessions,
        open_jupyter_proxy(
            settings, stores.reservations, stores.proxy_tokens, stores.addons, trail=services.trail, clock=clock
        ) as jupyter,
    ):
        config = uvicorn.Config(
            jupyter.wrap_app(create_app(services)),
            port=0,
            http=limited_http_protocol(),
            ws=partial(jupyter.make_protocol, sessions),  # type: ignore[arg-type]
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield Place(url, stores, settings.state_dir, services.trail)
        server.should_exit = True
        await serving
    for reservation_id in (await cluster.observe()).servers:
        async with asyncio.timeout(20):
            while not await cluster.ensure_gone(reservation_id):  # noqa: ASYNC110 - it is asked
                await asyncio.sleep(0.1)
    await cluster.close()
    await changes.close()
