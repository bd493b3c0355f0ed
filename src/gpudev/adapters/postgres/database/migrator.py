"""Applies the schema's migrations: numbered files, one transaction each, with checksums.

An advisory lock makes concurrent migrators safe: the second waits, then finds nothing to do. PGMQ comes first, from
its own package's SQL, unless the server has it as an extension or an earlier run installed it.
"""

import functools
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, connect, translate_errors
from gpudev.adapters.postgres.database.roles import ensure_roles, grant_privileges
from gpudev.domain.cluster import GpuType, load_catalogue
from gpudev.domain.errors import Conflict
from gpudev.settings import DatabaseSettings

_LOCK = 0x67707564  # "gpud"
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class MigrationState:
    number: int
    name: str
    applied_at: datetime | None


class ChecksumMismatch(Conflict):
    """An applied migration was edited, or the database belongs to another branch of development."""

    code = "migration_checksum"


@functools.cache
def list_migrations() -> list[Migration]:
    """The migrations of this program at its start. Files that an upgrade adds later belong to the next start."""
    folder = files("gpudev.adapters.postgres").joinpath("migrations")
    found = []
    for entry in folder.iterdir():
        if match := _FILE.fullmatch(entry.name):
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.number)


class NewerSchema(Conflict):
    """The database has migrations that this program does not know: a later version applied them."""

    code = "newer_schema"


async def migrate(database: DatabaseSettings, *, roles: bool = False, refuse_newer: bool = False) -> list[Migration]:
    """Apply missing migrations, and return them.

    `roles`: also create the services' roles. Existing roles get their privileges in any case. `refuse_newer`: raise
    NewerSchema, and change nothing, where a later version has been.
    """
    with translate_errors():
        return await _migrate(database, roles=roles, refuse_newer=refuse_newer)


async def _migrate(database: DatabaseSettings, *, roles: bool, refuse_newer: bool) -> list[Migration]:
    connection = await connect(database)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        if refuse_newer:
            await _check_not_newer(connection)
        if roles:
            await ensure_roles(connection)
        await _ensure_migrations_table(connection)
        await _ensure_pgmq(connection)
        applied = await _applied_migrations(connection)
        done = []
        for migration in list_migrations():
            known = applied.get(migration.number)
            if known is None:
                await _apply_migration(connection, migration)
                done.append(migration)
            elif known["checksum"] != migration.checksum:
                raise ChecksumMismatch(
                    f"migration {migration.number:04} ({migration.name}) differs from what this database has applied"
                )
        await seed_gpu_types(connection, list(load_catalogue().values()), overwrite=False)
        await ensure_queue_notifications(connection)
        await grant_privileges(connection)
        return done
    finally:
        await connection.close()


async def list_migration_states(database: DatabaseSettings) -> list[MigrationState]:
    connection = await connect(database)
    try:
        exists = await connection.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL")
        applied = await _applied_migrations(connection) if exists else {}
        known = {migration.number: migration.name for migration in list_migrations()}
        known.update({number: row["name"] for number, row in applied.items()})
        return [
            MigrationState(number, name, applied[number]["applied_at"] if number in applied else None)
            for number, name in sorted(known.items())
        ]
    finally:
        await connection.close()


async def is_schema_current(connection: Connection) -> bool:
    """Whether all migrations of this program are applied: services wait for their schema.

    A table that may not be read yet counts as missing: the services' roles get their privileges last.
    """
    if not await connection.fetchval("SELECT has_table_privilege(to_regclass('schema_migrations'), 'SELECT')"):
        return False
    return {migration.number for migration in list_migrations()} <= set(await _applied_migrations(connection))


async def seed_gpu_types(connection: Connection, types: list[GpuType], *, overwrite: bool) -> None:
    """Insert the catalogue's rows. Operators' edits are kept, unless `overwrite`: this machine's own types."""
    rows = [
        (t.name, t.instance_type, t.max_gpus, t.cpus, t.memory_gb, t.multinode, t.description, overwrite) for t in types
    ]
    await connection.executemany(
        """
        INSERT INTO gpu_types (gpu_type, instance_type, max_gpus, max_per_node, cpus, memory_gb, multinode, description)
        VALUES ($1, $2, $3, $3, $4, $5, $6, $7)
        ON CONFLICT (gpu_type) DO UPDATE
        SET instance_type = EXCLUDED.instance_type, max_gpus = EXCLUDED.max_gpus, max_per_node = EXCLUDED.max_gpus,
            cpus = EXCLUDED.cpus, memory_gb = EXCLUDED.memory_gb, multinode = EXCLUDED.multinode,
            description = EXCLUDED.description
        WHERE $8
        """,
        rows,
    )


async def ensure_queue_notifications(connection: Connection) -> None:
    """Enable PGMQ's insert notification for both queues.

    Called at every connect of a listener, not only once: PGMQ keeps the switch in an unlogged table, which a crash of
    the server empties. A SQL function of ours does it, because a service's role may not create triggers.
    """
    await connection.execute("SELECT enable_queue_notifications()")


async def _apply_migration(connection: Connection, migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute(migration.sql)
        await connection.execute(
            "INSERT INTO schema_migrations (number, name, checksum) VALUES ($1, $2, $3)",
            migration.number,
            migration.name,
            migration.checksum,
        )


async def _check_not_newer(connection: Connection) -> None:
    if not await connection.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL"):
        return
    known = {migration.number for migration in list_migrations()}
    if unknown := [row for number, row in (await _applied_migrations(connection)).items() if number not in known]:
        newest = max(unknown, key=lambda row: int(row["number"]))
        raise NewerSchema(
            f"a later version of gpu-dev has used this state (migration {newest['number']:04}, {newest['name']}, of "
            f"{newest['applied_at']:%Y-%m-%d}); nothing was changed; start that version or a later one"
        )


async def _applied_migrations(connection: Connection) -> dict[int, asyncpg.Record]:
    rows = await connection.fetch("SELECT number, name, checksum, applied_at FROM schema_migrations")
    return {row["number"]: row for row in rows}


async def _ensure_migrations_table(connection: Connection) -> None:
    await connection.execute(
        """
        CREATE TABLE IF NOT EXISTS schema_migrations (
            number     INTEGER PRIMARY KEY,
            name       TEXT NOT NULL,
            checksum   TEXT NOT NULL,
            applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
        )
        """
    )


async def _ensure_pgmq(connection: Connection) -> None:
    if await connection.fetchval("SELECT to_regproc('pgmq.list_queues') IS NOT NULL"):
        return
    async with connection.transaction():
        await connection.execute(files("pgmq").joinpath("sql", "pgmq.sql").read_text(encoding="utf-8"))
