"""What each service's database role must not be able to do. That they can do their work, the tests of the services
themselves show: the API's, the processor's and the reconcilers' run under these roles."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import asyncpg
import pytest

from gpudev.adapters.postgres.database import migrator as migrating
from gpudev.adapters.postgres.database import roles
from gpudev.adapters.postgres.database.cleanup import delete_old_rows
from gpudev.adapters.postgres.database.migrator import ensure_queue_notifications, migrate
from gpudev.adapters.postgres.database.pool import connect
from gpudev.adapters.postgres.database.roles import API, GRANTS, MIGRATOR, PROCESSOR, RECONCILER, SERVICE_ROLES
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Forbidden
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import DatabaseSettings

FOR_NO_SERVICE = [
    "DELETE FROM reservations",
    "DELETE FROM reservation_events",
    "UPDATE reservation_events SET message = 'nothing happened'",
    "DELETE FROM disks",
    "DELETE FROM disk_events",
    "DELETE FROM disk_snapshots",
    "DELETE FROM api_users",
    "UPDATE audit_log SET username = 'somebody else'",
    "DELETE FROM audit_log",
    "TRUNCATE audit_log",
    "TRUNCATE reservations CASCADE",
    "UPDATE schema_migrations SET checksum = ''",
    "INSERT INTO schema_migrations (number, name, checksum) VALUES (9999, 'mine', '')",
    "DROP TABLE api_keys",
    "ALTER TABLE audit_log DISABLE TRIGGER ALL",
    "CREATE TABLE mine ()",
    "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION tell_key_changed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    "CREATE SCHEMA mine",
    "CREATE ROLE mine",
    "ALTER ROLE gpudev_api SUPERUSER",
    "SET ROLE gpudev_migrator",
    "COPY api_users TO PROGRAM 'cat'",
    "SELECT pg_read_file('PG_VERSION')",
    "SELECT pgmq.drop_queue('gpu_reservations')",
]
FORBIDDEN = {
    API: [
        "UPDATE gpu_types SET max_gpus = 100",
        "INSERT INTO gpu_types (gpu_type, instance_type, max_gpus, cpus, memory_gb) VALUES ('x', 'x', 1, 1, 1)",
        "INSERT INTO leases (name, holder, epoch, expires_at) VALUES ('planning', 'me', 99, now())",
        "UPDATE queue_plans SET version = 0",
        "UPDATE cluster_nodes SET units = 1000",
        "INSERT INTO held_gpus VALUES ('node', 0, gen_random_uuid())",
        "DELETE FROM api_keys",
        "INSERT INTO invitations (secret_hash, username, created_at, expires_at) VALUES ('', 'me', now(), now())",
        "UPDATE idempotency_keys SET fingerprint = ''",
        "SELECT environment FROM reservation_setups",
        "SELECT * FROM pgmq.q_gpu_reservations_dlq",
        "DELETE FROM pgmq.q_gpu_reservations",
        "SELECT enable_queue_notifications()",
    ],
    PROCESSOR: [
        "SELECT key_hash FROM api_keys",
        "SELECT * FROM api_keys",
        "UPDATE api_keys SET is_active = true",
        "INSERT INTO api_keys (user_id, key_hash, key_prefix) VALUES (1, 'x', 'x')",
        "UPDATE api_users SET role = 'admin'",
        "INSERT INTO api_users (username) VALUES ('mine')",
        "SELECT * FROM audit_log",
        "INSERT INTO audit_log (at, action, outcome) VALUES (now(), 'x', 'ok')",
        "INSERT INTO proxy_tokens (token_hash) VALUES ('')",
    ],
    RECONCILER: [
        "SELECT key_id FROM api_keys",
        "SELECT * FROM invitations",
        "SELECT * FROM login_nonces",
        "SELECT * FROM idempotency_keys",
        "SELECT * FROM audit_log",
        "UPDATE api_users SET role = 'admin'",
    ],
}


@pytest.fixture
async def as_role(database: DatabaseSettings) -> AsyncIterator[Callable[[str], object]]:
    opened = []

    async def open_as(role: str) -> "asyncpg.Connection[asyncpg.Record]":
        opened.append(await connect(replace(database, user=role)))
        return opened[-1]

    yield open_as
    for connection in opened:
        await connection.close()


@pytest.mark.parametrize("role", SERVICE_ROLES)
async def test_a_service_can_do_no_more_than_its_work(as_role, role: str, subtests: pytest.Subtests) -> None:  # type: ignore[no-untyped-def]
    connection = await as_role(role)
    for statement in FOR_NO_SERVICE + FORBIDDEN[role]:
        with subtests.test(statement=statement), pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)


async def test_every_table_says_who_may_use_it(database: DatabaseSettings) -> None:
    connection = await connect(database)
    rows = await connection.fetch(
        "SELECT format('%s%s', CASE schemaname WHEN 'public' THEN '' ELSE 'pgmq.' END, tablename) AS name "
        "FROM pg_tables WHERE schemaname IN ('public', 'pgmq')"
    )
    await connection.close()
    there = {row["name"] for row in rows}
    named = {table for grants in GRANTS.values() for table in grants}
    assert there - named <= {"pgmq.topic_bindings"}, "add them to gpudev.adapters.postgres.database.roles.GRANTS"
    assert named <= there


async def test_not_even_the_owner_rewrites_the_audit_log_by_mistake(database: DatabaseSettings) -> None:
    connection = await connect(database)
    await connection.execute("INSERT INTO audit_log (at, action, outcome) VALUES (now(), 'x', 'ok')")
    for statement in ("UPDATE audit_log SET outcome = 'y'", "DELETE FROM audit_log", "TRUNCATE audit_log"):
        with pytest.raises(asyncpg.PostgresError, match="append-only"):
            await connection.execute(statement)
    assert await connection.fetchval("SELECT outcome FROM audit_log") == "ok"
    await connection.close()


async def test_the_migrator_makes_a_database_in_which_the_services_work(
    postgres: EmbeddedPostgres, subtests: pytest.Subtests
) -> None:
    control = replace(postgres.database_settings(), database="postgres")
    admin = await connect(control)
    fresh = replace(control, database="made_by_the_migrator", user=MIGRATOR)
    await admin.execute(f'CREATE DATABASE {fresh.database} OWNER "{MIGRATOR}"')
    try:
        assert len(await migrate(fresh)) == len(migrating.list_migrations())
        api = await connect(replace(fresh, user=API))
        assert await api.fetchval("SELECT count(*) FROM gpu_types") > 0
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await api.execute("DELETE FROM reservations")
        await api.close()
        processor = await connect(replace(fresh, user=PROCESSOR))
        await ensure_queue_notifications(processor)
        await processor.close()
        migrator = await connect(fresh)
        for statement in ("CREATE ROLE mine", "SELECT pg_read_file('PG_VERSION')", "COPY api_users TO PROGRAM 'cat'"):
            with subtests.test(statement=statement), pytest.raises(asyncpg.InsufficientPrivilegeError):
                await migrator.execute(statement)
        # What was granted by hand in a hurry is gone after the next migration.
        await migrator.execute(f"GRANT DELETE ON reservations TO {API}")
        await migrator.close()
        await migrate(fresh)
        api = await connect(replace(fresh, user=API))
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await api.execute("DELETE FROM reservations")
        await api.close()
    finally:
        await admin.execute(f"DROP DATABASE {fresh.database} WITH (FORCE)")
        await admin.close()


async def test_whoever_may_not_make_roles_is_told_so(
    database: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "SERVICE_ROLES", ("gpudev_another",))
    connection = await connect(replace(database, user=API))
    with pytest.raises(Forbidden, match="CREATEROLE"):
        await roles.ensure_roles(connection)
    await connection.close()


async def test_the_processor_switches_notifications_on_again_after_a_crash(
    database: DatabaseSettings, stores_of: Callable[[str], Stores]
) -> None:
    owner = await connect(database)
    await owner.execute("DELETE FROM pgmq.notify_insert_throttle")
    async with stores_of(PROCESSOR).pool.acquire() as connection:
        await ensure_queue_notifications(connection)
    assert await owner.fetchval("SELECT count(*) FROM pgmq.notify_insert_throttle") == 2
    await owner.close()


async def test_the_processor_keeps_house(stores: Stores, stores_of: Callable[[str], Stores]) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    await stores.users.issue_key(user.user_id, None, "kept")
    async with stores.pool.acquire() as connection:
        await connection.execute(
            "INSERT INTO api_keys (user_id, key_hash, key_prefix, created_at, is_active) "
            "VALUES ($1, 'x', 'x', now() - interval '1 year', false)",
            user.user_id,
        )
    forgotten = await delete_old_rows(stores_of(PROCESSOR).pool)
    assert forgotten[1] == 1
    assert len(await stores.administration.list_keys(ended=True)) == 1
