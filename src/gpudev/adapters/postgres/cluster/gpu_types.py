"""GPU types on PostgreSQL: the catalogue, and the availability of each type."""

from collections.abc import Sequence

import asyncpg

from gpudev.adapters.postgres.database.leases import check_epoch
from gpudev.adapters.postgres.database.migrator import seed_gpu_types
from gpudev.adapters.postgres.database.pool import Pool
from gpudev.domain.cluster import Catalogue, GpuType
from gpudev.domain.errors import Conflict, NotFound
from gpudev.ports.cluster import AvailabilityRow
from gpudev.ports.leases import Lease

_UPDATE_AVAILABILITY = """
UPDATE gpu_types
SET total_cluster_gpus = $2, available_gpus = $3, max_reservable = $4, full_nodes_available = $5,
    running_instances = $6, desired_capacity = $7, max_per_node = $8, last_availability_update = $9,
    last_availability_updated_by = $10
WHERE gpu_type = $1
"""


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
            raise NotFound(f"no GPU type named {name!r}")
        return _gpu_type_from_row(row)

    async def save_gpu_types(self, types: Sequence[GpuType]) -> None:
        """The types of this machine's own nodes override the seeded catalogue."""
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
            await connection.executemany(_UPDATE_AVAILABILITY, map(_availability_values, facts))


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


def _availability_values(row: AvailabilityRow) -> tuple[object, ...]:
    """The parameters of `_UPDATE_AVAILABILITY`."""
    return (
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


class PostgresAvailability:
    """Availability without the planning lease, for one-shot commands. It never overwrites newer rows."""

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
            raise Conflict(f"the database rejected it: {error}") from error

    async def _write(self, row: AvailabilityRow) -> bool:
        async with self._pool.acquire() as connection:
            updated = await connection.fetchval(
                f"""
                {_UPDATE_AVAILABILITY} AND (last_availability_update IS NULL OR last_availability_update <= $9)
                RETURNING gpu_type
                """,
                *_availability_values(row),
            )
        return updated is not None
