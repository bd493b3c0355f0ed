"""Nodes, the catalogue, availability and disks on PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from gpudev.adapters.postgres.database.leases import check_epoch
from gpudev.adapters.postgres.database.migrator import seed_gpu_types
from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.adapters.postgres.reservations import reservation_rows
from gpudev.domain.cluster import Catalogue, GpuType, Node
from gpudev.domain.errors import Conflict, NotFound
from gpudev.ports.cluster import AvailabilityRow
from gpudev.ports.leases import Lease

_ABSENT_RETENTION = timedelta(days=30)


class PostgresNodes:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def publish_nodes(self, lease: Lease, nodes: Sequence[Node], observed_at: datetime) -> None:
        async with self._pool.transaction() as connection:
            await check_epoch(connection, lease)
            await _record_absent_nodes(connection, [node.name for node in nodes], observed_at)
            await connection.executemany(
                """
                INSERT INTO cluster_nodes (name, gpu_type, units, ready, schedulable, foreign_units, foreign_indices,
                                           simulated, address, seen_at)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                ON CONFLICT (name) DO UPDATE
                SET gpu_type = EXCLUDED.gpu_type, units = EXCLUDED.units, ready = EXCLUDED.ready,
                    schedulable = EXCLUDED.schedulable, foreign_units = EXCLUDED.foreign_units,
                    foreign_indices = EXCLUDED.foreign_indices, simulated = EXCLUDED.simulated,
                    address = EXCLUDED.address, seen_at = EXCLUDED.seen_at
                """,
                [
                    (
                        n.name,
                        n.gpu_type,
                        n.units,
                        n.ready,
                        n.schedulable,
                        n.foreign_units,
                        sorted(n.foreign_indices),
                        n.simulated,
                        n.address,
                        observed_at,
                    )
                    for n in nodes
                ],
            )

    async def nodes(self, gpu_type: str | None = None) -> tuple[list[Node], datetime | None]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                # What an operator closes is closed at once, and not only when the processor has looked again.
                """
                SELECT n.name, n.gpu_type, n.units, n.ready, n.schedulable AND c.node IS NULL AS schedulable,
                       n.foreign_units, n.foreign_indices, n.simulated, n.address, n.seen_at, c.reason AS closed_because
                FROM cluster_nodes n LEFT JOIN node_cordons c ON c.node = n.name
                WHERE $1::text IS NULL OR n.gpu_type = $1 ORDER BY n.name
                """,
                gpu_type,
            )
        return [reservation_rows.node_from_row(row) for row in found], max(
            (row["seen_at"] for row in found), default=None
        )


async def _record_absent_nodes(connection: Connection, present: Sequence[str], now: datetime) -> None:
    """Those that are gone are known for a while, so that one can be closed before it comes back."""
    await connection.execute(
        """
        WITH gone AS (DELETE FROM cluster_nodes WHERE name <> ALL($1::text[]) RETURNING name, gpu_type, seen_at)
        INSERT INTO nodes_away (name, gpu_type, seen_at) SELECT name, gpu_type, seen_at FROM gone
        ON CONFLICT (name) DO UPDATE SET gpu_type = EXCLUDED.gpu_type, seen_at = EXCLUDED.seen_at
        """,
        present,
    )
    await connection.execute(
        "DELETE FROM nodes_away WHERE name = ANY($1::text[]) OR seen_at < $2", present, now - _ABSENT_RETENTION
    )


class PostgresCatalogue:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def catalogue(self) -> Catalogue:
        async with self._pool.acquire() as connection:
            found = await connection.fetch("SELECT * FROM gpu_types ORDER BY gpu_type")
        return {row["gpu_type"]: _gpu_type_from_row(row) for row in found}

    async def update_gpu_type(self, name: str, *, is_active: bool | None, description: str | None) -> GpuType:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                """
                UPDATE gpu_types SET is_active = coalesce($2, is_active), description = coalesce($3, description)
                WHERE gpu_type = $1 RETURNING *
                """,
                name,
                is_active,
                description,
            )
        if row is None:
            raise NotFound(f"there is no GPU type {name!r}")
        return _gpu_type_from_row(row)

    async def save_gpu_types(self, types: Sequence[GpuType]) -> None:
        """What this machine knows of its own types goes before the seed."""
        async with self._pool.transaction() as connection:
            await seed_gpu_types(connection, list(types), overwrite=True)

    async def availability(self) -> list[AvailabilityRow]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch("SELECT * FROM gpu_types ORDER BY gpu_type")
        return [
            AvailabilityRow(
                gpu_type=row["gpu_type"],
                total_cluster_gpus=row["total_cluster_gpus"],
                available_gpus=row["available_gpus"],
                max_reservable=row["max_reservable"],
                full_nodes_available=row["full_nodes_available"],
                running_instances=row["running_instances"],
                desired_capacity=row["desired_capacity"],
                max_per_node=row["max_per_node"],
                updated_at=row["last_availability_update"],
                updated_by=row["last_availability_updated_by"],
            )
            for row in found
        ]

    async def publish_availability(self, lease: Lease, facts: Sequence[AvailabilityRow]) -> None:
        async with self._pool.transaction() as connection:
            await check_epoch(connection, lease)
            await connection.executemany(
                """
                UPDATE gpu_types
                SET total_cluster_gpus = $2, available_gpus = $3, max_reservable = $4, full_nodes_available = $5,
                    running_instances = $6, desired_capacity = $7, max_per_node = $8, last_availability_update = $9,
                    last_availability_updated_by = $10
                WHERE gpu_type = $1
                """,
                [
                    (
                        f.gpu_type,
                        f.total_cluster_gpus,
                        f.available_gpus,
                        f.max_reservable,
                        f.full_nodes_available,
                        f.running_instances,
                        f.desired_capacity,
                        f.max_per_node,
                        f.updated_at,
                        f.updated_by,
                    )
                    for f in facts
                ],
            )


def _gpu_type_from_row(row: asyncpg.Record) -> GpuType:
    return GpuType(
        row["gpu_type"],
        row["instance_type"],
        row["max_gpus"],
        row["cpus"],
        row["memory_gb"],
        row["multinode"],
        row["description"],
        row["is_active"],
    )


# Availability rows on PostgreSQL, for whoever looks once: facts never replace later ones.


class PostgresAvailability:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def type_names(self) -> list[str]:
        async with self._pool.acquire() as connection:
            return [row["gpu_type"] for row in await connection.fetch("SELECT gpu_type FROM gpu_types ORDER BY 1")]

    async def availability(self) -> list[AvailabilityRow]:
        return await PostgresCatalogue(self._pool).availability()

    async def write_if_newer(self, row: AvailabilityRow) -> bool:
        try:
            return await self._write(row)
        except asyncpg.PostgresError as error:
            raise Conflict(f"the database refuses it: {error}") from error

    async def _write(self, row: AvailabilityRow) -> bool:
        async with self._pool.acquire() as connection:
            done = await connection.fetchval(
                """
                UPDATE gpu_types
                SET total_cluster_gpus = $2, available_gpus = $3, max_reservable = $4, full_nodes_available = $5,
                    running_instances = $6, desired_capacity = $7, max_per_node = $8, last_availability_update = $9,
                    last_availability_updated_by = $10
                WHERE gpu_type = $1 AND (last_availability_update IS NULL OR last_availability_update <= $9)
                RETURNING gpu_type
                """,
                row.gpu_type,
                row.total_cluster_gpus,
                row.available_gpus,
                row.max_reservable,
                row.full_nodes_available,
                row.running_instances,
                row.desired_capacity,
                row.max_per_node,
                row.updated_at,
                row.updated_by,
            )
        return done is not None
