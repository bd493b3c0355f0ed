"""Nodes on PostgreSQL: those of the last observation, for 30 days those that are gone, and cordons."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg

from gpudev.adapters.postgres.database.leases import check_epoch
from gpudev.adapters.postgres.database.pool import Connection, Pool, from_row
from gpudev.domain.cluster import Cordon, Node
from gpudev.domain.errors import NotFound
from gpudev.domain.ids import ReservationId
from gpudev.ports.cluster import AbsentNode
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
                # A cordon counts immediately, not only after the processor's next cycle.
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
    """Nodes that are gone are kept for a while, so that one can be cordoned before it comes back."""
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


class PostgresCordons:
    """Cordons, absent nodes and notices for terminals. A trigger wakes the processor."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def cordons(self) -> Mapping[str, Cordon]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch("SELECT * FROM node_cordons")
        return {
            row["node"]: Cordon(row["node"], row["cordoned_by"], row["reason"], row["cordoned_at"]) for row in found
        }

    async def cordon(self, node: str, by: str, reason: str, *, now: datetime) -> Cordon:
        async with self._pool.transaction() as connection:
            await _check_node_known(connection, node)
            await connection.execute(
                """
                INSERT INTO node_cordons (node, cordoned_by, reason, cordoned_at) VALUES ($1, $2, $3, $4)
                ON CONFLICT (node) DO UPDATE
                SET cordoned_by = EXCLUDED.cordoned_by, reason = EXCLUDED.reason, cordoned_at = EXCLUDED.cordoned_at
                """,
                node,
                by,
                reason,
                now,
            )
        return Cordon(node, by, reason, now)

    async def uncordon(self, node: str) -> None:
        async with self._pool.transaction() as connection:
            await _check_node_known(connection, node)
            await connection.execute("DELETE FROM node_cordons WHERE node = $1", node)

    async def has_taken_effect(self, nodes: Sequence[str]) -> bool:
        async with self._pool.acquire() as connection:
            # At the end of a cycle the processor publishes the nodes with which it planned.
            is_any_open = await connection.fetchval(
                "SELECT EXISTS (SELECT FROM cluster_nodes WHERE name = ANY($1::text[]) AND schedulable)", list(nodes)
            )
        return not is_any_open

    async def list_absent_nodes(self) -> Sequence[AbsentNode]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                "SELECT name, gpu_type, seen_at AS last_observed_at FROM nodes_away ORDER BY name"
            )
        return [AbsentNode(**dict(row)) for row in found]

    async def add_notice(self, reservation_id: ReservationId, message: str) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(
                "INSERT INTO terminal_notices (reservation_id, message) VALUES ($1, $2)", reservation_id, message
            )

    async def take_notices(self) -> Sequence[tuple[ReservationId, str]]:
        async with self._pool.acquire() as connection:
            if not await connection.fetchval("SELECT EXISTS (SELECT FROM terminal_notices)"):
                return []  # a cycle without notices writes nothing
            found = await connection.fetch("DELETE FROM terminal_notices RETURNING notice_id, reservation_id, message")
        by_age = sorted(found, key=lambda row: int(row["notice_id"]))
        return [(ReservationId(row["reservation_id"]), row["message"]) for row in by_age]


async def _check_node_known(connection: Connection, node: str) -> None:
    is_known = await connection.fetchval(
        """
        SELECT EXISTS (SELECT FROM cluster_nodes WHERE name = $1)
            OR EXISTS (SELECT FROM nodes_away WHERE name = $1)
            OR EXISTS (SELECT FROM node_cordons WHERE node = $1)
        """,
        node,
    )
    if not is_known:
        raise NotFound(f"no node named {node!r}")
