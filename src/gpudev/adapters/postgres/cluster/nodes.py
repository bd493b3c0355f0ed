"""Nodes on PostgreSQL: those that the cluster shows, and for a while those that are gone."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from gpudev.adapters.postgres.database.leases import check_epoch
from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.adapters.postgres.database.row_values import from_row
from gpudev.domain.cluster import Node
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
        return [_node_from_row(row) for row in found], max((row["seen_at"] for row in found), default=None)


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


def _node_from_row(row: asyncpg.Record) -> Node:
    return from_row(Node, row, foreign_indices=frozenset(row["foreign_indices"]), zone=None)
