"""A database of an older version, with people on it, is brought up to date: nobody and nothing of theirs is lost."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpudev.adapters.postgres.database import migrator
from gpudev.adapters.postgres.database.pool import Connection, connect
from gpudev.adapters.postgres.stores import open_stores
from gpudev.domain.reservations.reservation import Status
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import DatabaseSettings, Settings

_NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6QpYQZ2Xx6fJtK9yD0x1yq8c2H0Yw1l0m3wq5u9r0E ada"


@pytest.fixture
async def empty(postgres: EmbeddedPostgres) -> AsyncIterator[DatabaseSettings]:
    server = postgres.database_settings()
    fresh = replace(server, database=f"older_{uuid.uuid4().hex[:8]}")
    admin = await connect(replace(server, database="postgres"))
    await admin.execute(f'CREATE DATABASE "{fresh.database}"')
    yield fresh
    await admin.execute(f'DROP DATABASE "{fresh.database}" WITH (FORCE)')
    await admin.close()


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> migrator.Migration:
    """A migration that a later version brings along."""
    known = migrator.list_migrations()
    sql = "ALTER TABLE reservations ADD COLUMN added_later TEXT NOT NULL DEFAULT 'x'"
    later = migrator.Migration(known[-1].number + 1, "added_later", sql)
    monkeypatch.setattr(migrator, "list_migrations", lambda: [*known, later])
    return later


async def _live_on(database: DatabaseSettings) -> dict[Status, uuid.UUID]:
    """One that is active, with its place; one that waits, with its message; one that is over."""
    connection = await connect(database)
    user = await connection.fetchval("INSERT INTO api_users (username) VALUES ('ada') RETURNING user_id")
    ids = {status: uuid.uuid4() for status in (Status.ACTIVE, Status.QUEUED, Status.EXPIRED)}
    for status, rid in ids.items():
        await _reserve(connection, user, rid, status)
    await connection.execute(
        "INSERT INTO reservation_shares (reservation_id, rank, node, units, gpu_indices)"
        " VALUES ($1, 0, 'n1', 2, '{0,1}')",
        ids[Status.ACTIVE],
    )
    await connection.execute("SELECT pgmq.send('gpu_reservations', $1)", {"reservation_id": str(ids[Status.QUEUED])})
    await connection.close()
    return ids


async def _reserve(connection: Connection, user: int, rid: uuid.UUID, status: Status) -> None:
    is_over = status is Status.EXPIRED
    started = None if status is Status.QUEUED else _NOW
    await connection.execute(
        """
        INSERT INTO reservations (reservation_id, user_id, gpu_type, gpu_count, duration_hours, ssh_public_keys, status,
                                  created_at, launched_at, expires_at, reservation_ended, released_at, pod_name)
        VALUES ($1, $2, 'h100', 2, 4, $3, $4, $5, $6, $7, $8, $8, $9)
        """,
        rid,
        user,
        [_KEY],
        status.value,
        _NOW,
        started,
        started and started + timedelta(hours=4),
        _NOW + timedelta(hours=4) if is_over else None,
        f"gpu-dev-{str(rid)[:8]}",
    )


async def test_whoever_runs_or_waits_still_does_after_an_upgrade(
    empty: DatabaseSettings, request: pytest.FixtureRequest
) -> None:
    assert await migrator.migrate(empty) == migrator.list_migrations()
    ids = await _live_on(empty)
    later = request.getfixturevalue("next_version")
    assert await migrator.migrate(empty) == [later]
    stores = open_stores(Settings(database=empty))
    try:
        rows = {row.status: row for row in await stores.reservations.unreleased()}
        assert {status: row.reservation_id for status, row in rows.items()} == {
            status: ids[status] for status in (Status.ACTIVE, Status.QUEUED)
        }
        running = rows[Status.ACTIVE]
        assert [(share.node, share.gpu_indices) for share in running.shares] == [("n1", (0, 1))]
        assert running.expires_at == _NOW + timedelta(hours=4)
        over = await stores.reservations.find_reservation(ids[Status.EXPIRED])  # type: ignore[arg-type]
        assert over is not None
        assert over.is_released
        async with stores.pool.acquire() as connection:
            assert await connection.fetchval("SELECT count(*) FROM pgmq.q_gpu_reservations") == 1
    finally:
        await stores.close()
    assert await migrator.migrate(empty) == []
