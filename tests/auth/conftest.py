"""The API with its ways in, over a real PostgreSQL; an issuer of one's own whose words a test chooses; and dex."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import uvicorn

from auth.issuing import Stranger, TestIssuer
from gpudev.adapters.oidc.issuer_keys import IssuerKeys
from gpudev.adapters.oidc.provider import OidcProvider
from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.adapters.postgres.database.pool import connect
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.app import create_app
from gpudev.api.dependencies import ApiDependencies
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import DatabaseSettings, OidcSettings, Settings
from gpudev.workflows.login import InvitationLogin
from support.api import PublishedKeys, api_services, until
from support.clock import ManualClock
from support.dex import CLIENT, Dex, running
from support.go_program import DEX


@pytest.fixture
def issuer() -> Iterator[TestIssuer]:
    made = TestIssuer()
    yield made
    made.close()


@pytest.fixture
def oidc(issuer: TestIssuer) -> OidcSettings:
    return OidcSettings(issuer=issuer.address, client_id=CLIENT)


@pytest.fixture
async def services(
    stores: Stores, clock: ManualClock, settings: Settings, oidc: OidcSettings
) -> AsyncIterator[ApiDependencies]:
    changes = PostgresReservationChanges(settings.database)
    keys = IssuerKeys(oidc.issuer, seconds=5)
    made = api_services(stores, changes, PublishedKeys(), clock, replace(settings, oidc=oidc))
    yield replace(
        made,
        oidc_login=OidcProvider(oidc, keys, stores.used_tokens, clock),
        invitation_login=InvitationLogin(stores.invitations, clock),
    )
    await keys.close()


@pytest.fixture
async def client(services: ApiDependencies) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(create_app(services))
    async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client


@pytest.fixture
async def address(services: ApiDependencies) -> AsyncIterator[str]:
    """The app behind a real server."""
    config = uvicorn.Config(create_app(services), port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest.fixture
def stranger() -> Stranger:
    return Stranger()


@pytest.fixture(scope="session")
def dex(tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres) -> Iterator[Dex]:
    program = DEX.find()
    if program is None:
        pytest.skip("dex is not built: `make test` builds it, and so does `python tests/support/go_program.py`")
    own = replace(postgres.database_settings(), database="dex")
    asyncio.run(_make_database(own))
    with running(program, Path(tmp_path_factory.mktemp("dex")), own) as dex:
        yield dex


async def _make_database(database: DatabaseSettings) -> None:
    admin = await connect(replace(database, database="postgres"))
    try:
        await admin.execute(f'CREATE DATABASE "{database.database}"')
    finally:
        await admin.close()
