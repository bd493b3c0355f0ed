"""What many tests share: a clock that is moved by hand and a real PostgreSQL with a fresh database per test."""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from gpudev.settings import DatabaseSettings, Settings
from support.clean_environment import settle
from support.clock import ManualClock

if TYPE_CHECKING:  # what talks to a database is loaded when a test asks for one
    from gpudev.adapters.postgres.stores import Stores
    from gpudev.embedded.postgres import EmbeddedPostgres

pytest_plugins = ["support.fixtures.kubernetes"]
_numbers = itertools.count(1)
# How long an example takes says how busy the machine is, and nothing else.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
settle(os.environ)
sys.dont_write_bytecode = False
# Programs set their own (tests/unit/system/test_main.py); parts that run within a test rely on it.
os.umask(0o022)
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # Started in the background of a script or under nohup: programs that tests start inherit that, and must not.
        signal.signal(_number, _handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--builds",
        choices=["all", "without", "only"],
        default="all",
        help="all tests, those without programs that are built once per machine (Kubernetes, dex), or only these",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest tests begin first, so that nobody waits for them at the end."""
    if (wanted := config.getoption("--builds")) != "all":
        from support.builds import needs_builds

        left_out = [item for item in items if needs_builds(item) is (wanted == "without")]
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator["EmbeddedPostgres"]:
    """One server per test process, without durability. The schema is migrated once, into a template."""
    from gpudev.adapters.postgres.database.migrator import migrate
    from gpudev.embedded.postgres import EmbeddedPostgres

    server = EmbeddedPostgres(Path(tmp_path_factory.mktemp("postgres")) / "data", fast=True)
    server.initialise()
    server.start()
    asyncio.run(migrate(server.database_settings(), roles=True))
    yield server
    server.stop()


@pytest.fixture
async def database(postgres: "EmbeddedPostgres") -> AsyncIterator[DatabaseSettings]:
    """A fresh, migrated database."""
    from gpudev.adapters.postgres.database.pool import connect

    template = postgres.database_settings()
    fresh = replace(template, database=f"test_{next(_numbers)}")
    control = replace(template, database="postgres")
    admin = await connect(control)
    # Copying the files costs a seventh of what writing every page into the log does.
    await admin.execute(f'CREATE DATABASE "{fresh.database}" TEMPLATE "{template.database}" STRATEGY FILE_COPY')
    yield fresh
    await admin.execute(f'DROP DATABASE "{fresh.database}" WITH (FORCE)')
    await admin.close()


@pytest.fixture
def settings(database: DatabaseSettings, tmp_path: Path) -> Settings:
    return Settings(database=database, state_dir=tmp_path / "state")


@pytest.fixture
async def stores_of(settings: Settings) -> AsyncIterator[Callable[[str], "Stores"]]:
    """The stores as a service has them, who may do to the database what its role may and nothing else."""
    from gpudev.adapters.postgres.stores import open_stores

    opened: list[Stores] = []

    def open_as(role: str) -> "Stores":
        opened.append(open_stores(replace(settings, database=replace(settings.database, user=role))))
        return opened[-1]

    yield open_as
    for one in opened:
        await one.close()


@pytest.fixture
async def stores(settings: Settings) -> AsyncIterator["Stores"]:
    from gpudev.adapters.postgres.stores import open_stores

    opened = open_stores(settings)
    yield opened
    await opened.close()
