"""Health tells the truth: the process, the database and the processor, each for itself."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from gpudev.adapters.postgres.database.migrator import migrate
from gpudev.adapters.postgres.stores import open_stores
from gpudev.domain.errors import Unavailable
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import Settings
from support.api.harness import Api, refused
from support.polling import eventually_async


async def test_a_healthy_system_says_so_to_anybody(api: Api) -> None:
    client = api.anonymous()
    healthy = {"status": "ok", "checks": {"database": "ok", "processor": "alive"}}

    async def says_so(path: str) -> bool:
        answer = await client.get(path)
        assert answer.status_code == 200
        return healthy.items() <= answer.json().items()

    for path in ("/health", "/health/ready"):
        # On a busy machine the processor may renew its lease late.
        await eventually_async(partial(says_so, path), f"{path} is not ok")
    assert (await client.get("/health/live")).json()["status"] == "ok"


async def test_without_a_processor_it_is_ready_but_tells(api: Api) -> None:
    async with api.world.stores.pool.acquire() as connection:
        await connection.execute("UPDATE leases SET expires_at = '-infinity'")
    answer = await api.anonymous().get("/health")
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["checks"]["processor"]) == ("degraded", "not alive")


async def test_a_database_that_never_answers_is_not_ready_in_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    api.restart(ping=hang)
    begun = asyncio.get_running_loop().time()
    answer = await api.anonymous().get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {"database": "does not answer", "processor": "unknown"}
    assert asyncio.get_running_loop().time() - begun < 3


async def test_a_database_that_cannot_write_is_not_ready_and_it_is_said_why(api: Api) -> None:
    async def refuse() -> None:
        raise Unavailable("the database cannot write, its disk is full: could not extend file /srv/data/base/5/1259")

    api.restart(ping=refuse)
    for path in ("/health", "/health/ready"):
        answer = await api.anonymous().get(path)
        assert answer.status_code == 503
        assert answer.json()["checks"] == {"database": "cannot write, its disk is full", "processor": "unknown"}


@pytest.mark.slow
async def test_a_stopped_database_is_not_ready_and_a_started_one_is_again(api: Api, tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "own" / "data", fast=True)
    await asyncio.to_thread(server.initialise)
    await asyncio.to_thread(server.start)
    database = server.database_settings()
    try:
        await migrate(database)
        stores = open_stores(Settings(database=database))
        api.restart(ping=stores.pool.ping, reservations=stores.reservations, catalogue=stores.catalogue)
        client = await api.as_user("ada")
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/jobs")).status_code == 200
        await asyncio.to_thread(server.stop)
        for path in ("/health", "/health/ready"):
            assert (await client.get(path)).status_code == 503
        assert (await client.get("/health/live")).status_code == 200
        detail = refused(await client.get("/v1/jobs"), 503, "unavailable")
        assert str(tmp_path) not in detail
        await asyncio.to_thread(server.start)
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/jobs")).status_code == 200
        await stores.close()
    finally:
        await asyncio.to_thread(server.stop)
