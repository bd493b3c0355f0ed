"""A database that takes connections and answers nothing, as one on a machine that hangs does."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import psutil
import pytest

from gpudev.adapters.postgres.pool import Pool
from gpudev.domain.errors import Unavailable
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import Database

PATIENCE, AT_MOST = 0.3, 10.0
"""Seconds; the second is what a busy machine may make of the first."""


@contextmanager
def hanging(postgres: EmbeddedPostgres) -> Iterator[None]:
    running = postgres.find_running()
    assert running is not None
    server = psutil.Process(running.pid)
    stopped = [server]
    server.suspend()
    try:
        for backend in server.children(recursive=True):
            backend.suspend()
            stopped.append(backend)
        yield
    finally:
        for process in stopped:
            process.resume()


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    opened = Pool(database, max_size=2, patience=PATIENCE)
    yield opened
    await opened.close()


async def transact(pool: Pool) -> None:
    async with pool.transaction() as connection:
        await connection.fetchval("SELECT 1")


async def test_it_is_told_soon_by_open_connections_and_by_new_ones(pool: Pool, postgres: EmbeddedPostgres) -> None:
    await asyncio.gather(pool.ping(), transact(pool))
    with hanging(postgres):
        async with asyncio.timeout(AT_MOST):
            for attempt in (transact, Pool.ping, transact, Pool.ping):
                with pytest.raises(Unavailable, match="does not answer: TimeoutError"):
                    await attempt(pool)
    async with asyncio.timeout(AT_MOST):
        await transact(pool)
        await pool.ping()


async def test_all_who_wait_for_a_first_connection_are_told_at_once(pool: Pool, postgres: EmbeddedPostgres) -> None:
    with hanging(postgres):
        async with asyncio.timeout(AT_MOST):
            told = await asyncio.gather(*(pool.ping() for _ in range(100)), return_exceptions=True)
    assert {type(error) for error in told} == {Unavailable}
    async with asyncio.timeout(AT_MOST):
        await pool.ping()


async def test_whoever_gives_up_earlier_is_let_go_too(database: Database, postgres: EmbeddedPostgres) -> None:
    patient = Pool(database, patience=600)
    await patient.ping()
    with hanging(postgres):
        async with asyncio.timeout(AT_MOST):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await patient.ping()
    await patient.close()


async def test_a_connection_that_nobody_gives_back_is_not_waited_for_without_end(pool: Pool) -> None:
    async with pool.acquire(), pool.acquire():
        async with asyncio.timeout(AT_MOST):
            with pytest.raises(Unavailable):
                await pool.ping()
    await pool.ping()
