"""The API with its login by AWS over a real PostgreSQL, and a token service that checks signatures."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import uvicorn

from gpudev.adapters.aws.login import AwsIdentityProvider
from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.adapters.postgres.database.roles import API
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.app import create_app
from gpudev.domain.cluster import Node
from gpudev.domain.queue import PLANNING_LEASE
from gpudev.ports.clock import SystemClock
from gpudev.settings import AwsLoginSettings, Settings
from login.place import Listening, Place, Served
from login.signing import ADA, REGION, SERVER
from support.api import PublishedKeys, api_services, until
from support.clock import ManualClock
from support.sts_stub import ACCOUNT, StsStub


@pytest.fixture
async def sts(clock: ManualClock) -> AsyncIterator[StsStub]:
    stub = StsStub(now=clock.now)
    stub.know(ADA)
    await stub.start()
    yield stub
    await stub.close()


@pytest.fixture
def login_settings(settings: Settings, sts: StsStub) -> Settings:
    return replace(
        settings,
        server_names=(SERVER,),
        aws_login=AwsLoginSettings(
            accounts=(ACCOUNT,), regions=(REGION,), sts_url=sts.address, timeout=timedelta(seconds=20)
        ),
    )


@pytest.fixture
async def place(
    stores: Stores, stores_of: Callable[[str], Stores], clock: ManualClock, login_settings: Settings, sts: StsStub
) -> AsyncIterator[Place]:
    """The API works with no more rights in the database than it has in earnest."""
    changes, its_own = PostgresReservationChanges(login_settings.database), stores_of(API)
    services = api_services(its_own, changes, PublishedKeys(), clock, login_settings)
    aws = AwsIdentityProvider(login_settings, its_own.nonces, clock)
    app = create_app(replace(services, aws_login=aws))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api") as client:
        yield Place(client, stores, clock, sts, services, aws)
    await aws.close()


@pytest.fixture
def names() -> list[str]:
    """As whom the served API takes logins; none: as whom it is reached."""
    return []


@pytest.fixture
async def served(stores: Stores, settings: Settings, names: list[str]) -> AsyncIterator[Served]:
    """By the real clock, since the AWS library signs by it. There are nodes, and nobody who plans."""
    sts = StsStub()
    sts.know(ADA)
    await sts.start()
    line = socket.create_server(("127.0.0.1", 0))
    reached_as = f"127.0.0.1:{line.getsockname()[1]}"
    login = AwsLoginSettings(accounts=(ACCOUNT,), regions=("us-west-2", REGION), sts_url=sts.address)
    chosen = replace(settings, server_names=tuple(names) or (reached_as,), aws_login=login)
    lease = await stores.leases.acquire(PLANNING_LEASE, "test", timedelta(hours=1))
    assert lease is not None
    await stores.nodes.publish_nodes(lease, [Node("node-1", "h100", 8)], datetime.now(UTC))
    changes = PostgresReservationChanges(chosen.database)
    changes.start()
    aws = AwsIdentityProvider(chosen, stores.nonces, SystemClock())
    services = replace(api_services(stores, changes, PublishedKeys(), SystemClock(), chosen), aws_login=aws)
    arrived: list[str] = []
    app = create_app(services)
    heard = Listening(app, arrived)
    server = uvicorn.Server(uvicorn.Config(heard, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[line]))
    await until(lambda: server.started)
    yield Served(f"http://{reached_as}", stores, sts, server, arrived, app.state.guard.authentication)
    server.should_exit = True
    await serving
    await aws.close()
    await changes.close()
    await sts.close()
