"""The API over a real PostgreSQL, a processor turned by hand and a cluster on paper."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx2
import pytest
import uvicorn

from api.proxy_place import PROXY_SETTINGS, Proxy, proxy_of
from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.adapters.postgres.database.roles import API, PROCESSOR
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.app import create_app
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.settings import Settings
from support.api import Api, PublishedKeys, api_services, until
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.world import World


@pytest.fixture
async def world(
    stores: Stores, stores_of: Callable[[str], Stores], clock: ManualClock, settings: Settings
) -> AsyncIterator[World]:
    """Two nodes of eight H100, already seen by the processor."""
    cluster = PaperCluster([Node("node-1", "h100", 8), Node("node-2", "h100", 8)], clock)
    theirs = stores_of(PROCESSOR)
    processor = make_processor(theirs, cluster, clock, settings.timing)
    processor._queue_planner._publisher._seconds = lambda: (
        0.0
    )  # publishing is never too dear, however slow the machine is
    world = World(replace(stores, leases=theirs.leases), cluster, clock, processor, settings)
    await world.turn(1)
    yield world
    await processor.effects.cancel()


@pytest.fixture
async def api(world: World, stores_of: Callable[[str], Stores]) -> AsyncIterator[Api]:
    stores, published = stores_of(API), PublishedKeys()
    changes = PostgresReservationChanges(stores.pool.database)
    changes.start()
    services = api_services(stores, changes, published, world.clock, world.settings)
    api = Api(services, world, published, create_app(services))
    yield api
    for client in api.clients:
        await client.aclose()
    await changes.close()


@pytest.fixture
async def ada(api: Api) -> httpx2.AsyncClient:
    return await api.as_user("ada")


@pytest.fixture
async def bob(api: Api) -> httpx2.AsyncClient:
    return await api.as_user("bob")


@pytest.fixture
async def address(api: Api) -> AsyncIterator[str]:
    """The app behind a real server."""
    config = uvicorn.Config(api.app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest.fixture
async def proxy(api: Api) -> AsyncIterator[Proxy]:
    async with proxy_of(api, PROXY_SETTINGS) as running:
        yield running
