"""A database that takes connections and answers nothing, as one on a machine that hangs does."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.domain.errors import Unavailable
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import DatabaseSettings

PATIENCE, AT_MOST = 1.0, 20.0
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
async def pool(database: DatabaseSettings) -> AsyncIterator[Pool]:
    opened = Pool(database, max_size=2, timeout_seconds=PATIENCE)
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


async def test_whoever_gives_up_earlier_is_let_go_too(database: DatabaseSettings, postgres: EmbeddedPostgres) -> None:
    patient = Pool(database, timeout_seconds=600)
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


async def test_a_session_that_the_server_has_ended_without_hanging_up_counts_as_a_server_that_is_not_there(
    database: DatabaseSettings, tmp_path: Path
) -> None:
    """As for the moment between a server's last words and its end."""
    talking: list[StreamWriter] = []
    handling: list[asyncio.Task[None]] = []

    async def pass_on(client: StreamReader, to_client: StreamWriter) -> None:
        server, to_server = await asyncio.open_unix_connection(f"{database.host}/.s.PGSQL.{database.port}")
        talking.extend((to_client, to_server))
        handling.extend(asyncio.create_task(carry(*way)) for way in ((client, to_server), (server, to_client)))

    async def carry(source: StreamReader, target: StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)

    async with await asyncio.start_unix_server(pass_on, tmp_path / f".s.PGSQL.{database.port}"):
        pool = Pool(replace(database, host=str(tmp_path)))
        await pool.ping()
        words = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
        handling[1].cancel()
        talking[0].write(b"E" + (len(words) + 4).to_bytes(4, "big") + words)
        await asyncio.sleep(0.05)  # long enough to be heard; heard later, they are an answer, and mean the same
        with pytest.raises(Unavailable, match="the database does not answer"):
            await pool.ping()
        await pool.close()
        for task in handling:
            task.cancel()
        for writer in talking:
            writer.close()
