"""The schema's own promises, tried on a real PostgreSQL."""

import asyncpg
import pytest

from gpudev.adapters.postgres.database import migrator
from gpudev.adapters.postgres.database.pool import connect
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.cluster import load_catalogue
from gpudev.settings import DatabaseSettings


async def test_migrating_again_applies_nothing(database: DatabaseSettings) -> None:
    assert await migrator.migrate(database) == []
    assert all(state.applied_at is not None for state in await migrator.list_migration_states(database))


async def test_an_edited_migration_is_refused(database: DatabaseSettings) -> None:
    connection = await connect(database)
    await connection.execute("UPDATE schema_migrations SET checksum = 'other' WHERE number = 1")
    await connection.close()
    with pytest.raises(migrator.ChecksumMismatch, match="0001"):
        await migrator.migrate(database)


async def test_what_a_later_version_has_left_is_refused_only_where_that_is_asked_for(
    database: DatabaseSettings,
) -> None:
    connection = await connect(database)
    try:
        await connection.execute("INSERT INTO schema_migrations VALUES (9000, 'of_tomorrow', 'abc')")
        with pytest.raises(migrator.NewerSchema, match=r"a later version .* 9000, of_tomorrow"):
            await migrator.migrate(database, refuse_newer=True)
        assert await migrator.migrate(database) == []
    finally:
        await connection.execute("DELETE FROM schema_migrations WHERE number = 9000")
        await connection.close()


async def test_the_catalogue_is_seeded_from_its_file(stores: Stores) -> None:
    assert await stores.catalogue.catalogue() == load_catalogue()


async def test_a_status_outside_the_set_is_refused_by_the_database(stores: Stores) -> None:
    async with stores.pool.acquire() as connection:
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(
                """
                WITH u AS (INSERT INTO api_users (username) VALUES ('x') RETURNING user_id)
                INSERT INTO reservations (reservation_id, user_id, gpu_type, gpu_count, duration_hours,
                                          ssh_public_keys, status, created_at, pod_name)
                SELECT gen_random_uuid(), user_id, 'h100', 1, 1, '{key}', 'sleeping', now(), 'p' FROM u
                """
            )
