"""Availability rows on PostgreSQL, for whoever looks once: facts never replace later ones."""

import asyncpg

from gpudev.adapters.postgres.cluster.gpu_types import PostgresCatalogue
from gpudev.adapters.postgres.database.pool import Pool
from gpudev.domain.errors import Conflict
from gpudev.ports.reservations import AvailabilityRow


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
