"""Closed nodes on PostgreSQL. A trigger wakes the processor."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.cluster import Cordon
from gpudev.domain.errors import NotFound
from gpudev.domain.ids import ReservationId
from gpudev.ports.cluster import AbsentNode


class PostgresCordons:
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
            # What the processor publishes at the end of a turn is what it has planned with.
            found = await connection.fetchval(
                "SELECT EXISTS (SELECT FROM cluster_nodes WHERE name = ANY($1::text[]) AND schedulable)", list(nodes)
            )
        return not found

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
                return []  # a turn without any writes nothing
            found = await connection.fetch("DELETE FROM terminal_notices RETURNING notice_id, reservation_id, message")
        by_age = sorted(found, key=lambda row: int(row["notice_id"]))
        return [(ReservationId(row["reservation_id"]), row["message"]) for row in by_age]


async def _check_node_known(connection: Connection, node: str) -> None:
    known = await connection.fetchval(
        """
        SELECT EXISTS (SELECT FROM cluster_nodes WHERE name = $1)
            OR EXISTS (SELECT FROM nodes_away WHERE name = $1)
            OR EXISTS (SELECT FROM node_cordons WHERE node = $1)
        """,
        node,
    )
    if not known:
        raise NotFound(f"no node named {node!r}")
