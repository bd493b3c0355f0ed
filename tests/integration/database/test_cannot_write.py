"""A database that answers but cannot write: readiness says why, and notices by itself when it can again."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.service_runtime import DatabaseReadiness
from gpudev.domain.errors import Unavailable
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import DatabaseSettings
from support.system.full_disk import small_disk


async def insert(pool: Pool) -> None:
    async with pool.transaction() as connection:
        await connection.execute("INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 1000)")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.slow
async def test_a_full_disk_is_an_outage_that_ends_with_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=160) as disk:
        server = EmbeddedPostgres(disk.folder / "data", fast=True, log_file=tmp_path / "postgres.log")
        server.initialise()
        server.start()
        pool = Pool(server.database_settings())
        try:
            await pool.check_writable()
            async with pool.acquire() as connection:
                await connection.execute("CREATE TABLE t (x text)")
            with disk.full():
                with pytest.raises(Unavailable, match="the database cannot write, its disk is full: "):
                    await pool.check_writable()
                with pytest.raises(Unavailable, match="the database cannot write, its disk is full: "):
                    await insert(pool)
                await pool.ping()
            await pool.check_writable()
            await insert(pool)
        finally:
            await pool.close()
            server.stop()


@pytest.fixture
async def read_only(database: DatabaseSettings) -> AsyncIterator[Pool]:
    """As clouds make a database whose disk is nearly full."""
    owner = Pool(database)
    async with owner.acquire() as connection:
        name = database.database.replace('"', '""')
        await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    await owner.close()
    pool = Pool(database)
    yield pool
    await pool.close()


async def test_a_read_only_database_cannot_write(read_only: Pool) -> None:
    with pytest.raises(Unavailable, match=r"^the database is read-only$"):
        await read_only.check_writable()
    with pytest.raises(Unavailable, match="the database is read-only: "):
        async with read_only.acquire() as connection:
            await connection.execute("CREATE TABLE t (x text)")


class Writing:
    """Whether writing works, and how often that was tried."""

    def __init__(self) -> None:
        self.tries = 0
        self.error: Unavailable | None = None

    async def check_writable(self) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error


async def test_writing_is_tried_rarely_and_more_often_while_it_does_not_work(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, now = Writing(), 100.0
    monkeypatch.setattr(stores.pool, "check_writable", writing.check_writable)
    readiness = DatabaseReadiness(stores, lambda: now)
    for _ in range(5):
        await readiness.check()
    assert writing.tries == 1
    writing.error = Unavailable("the database cannot write, its disk is full: no room")
    now += 4.9
    await readiness.check()
    now += 0.2
    for _ in range(3):
        with pytest.raises(Unavailable, match="its disk is full"):
            await readiness.check()
    assert writing.tries == 2
    writing.error = None
    now += 1.1
    await readiness.check()
    assert writing.tries == 3
