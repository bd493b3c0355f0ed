"""Tokens of the proxy on PostgreSQL, and the state that their grants depend on."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.reservations.reservation_rows import connection_from_row
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.sessions.grants import Grant, GrantState, TokenPurpose

_SELECT_GRANT_STATES = """
    SELECT g.reservation_id, g.user_id, g.key_id,
           u.username, coalesce(u.is_active, false) AS user_is_active, coalesce(k.is_active, false) AS key_is_active,
           coalesce(r.user_id = g.user_id OR u.role IN ('operator', 'admin'), false) AS may_enter,
           r.status, r.node_ip, r.node_port, r.ssh_user, r.ssh_host_key
    FROM unnest($1::uuid[], $2::int[], $3::int[]) AS g (reservation_id, user_id, key_id)
    LEFT JOIN reservations r ON r.reservation_id = g.reservation_id
    LEFT JOIN api_users u ON u.user_id = g.user_id
    LEFT JOIN api_keys k ON k.key_id = g.key_id AND k.user_id = g.user_id
"""


class PostgresProxyTokens:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def save_token(
        self, digest: bytes, grant: Grant, *, ends_at: datetime, now: datetime, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(
                """
                WITH ended AS (
                    DELETE FROM proxy_tokens WHERE token_hash IN (
                        SELECT token_hash FROM proxy_tokens WHERE expires_at <= $6
                        ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED)
                )
                INSERT INTO proxy_tokens (token_hash, reservation_id, user_id, key_id, expires_at, purpose)
                VALUES ($1, $2, $3, $4, $5, $7)
                """,
                digest,
                grant.reservation_id,
                grant.user_id,
                grant.key_id,
                ends_at,
                now,
                purpose.value,
            )

    async def find_token(
        self, digest: bytes, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> tuple[Grant, datetime] | None:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                "SELECT * FROM proxy_tokens WHERE token_hash = $1 AND purpose = $2", digest, purpose.value
            )
        return None if row is None else (_grant_from_row(row), row["expires_at"])

    async def consume_token(self, digest: bytes, purpose: TokenPurpose) -> tuple[Grant, datetime] | None:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                "DELETE FROM proxy_tokens WHERE token_hash = $1 AND purpose = $2 RETURNING *", digest, purpose.value
            )
        return None if row is None else (_grant_from_row(row), row["expires_at"])

    async def load_grant_states(self, grants: Sequence[Grant]) -> dict[Grant, GrantState]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                _SELECT_GRANT_STATES,
                [grant.reservation_id for grant in grants],
                [grant.user_id for grant in grants],
                [grant.key_id for grant in grants],
            )
        return {_grant_from_row(row): _grant_state_from_row(row) for row in rows}


def _grant_from_row(row: asyncpg.Record) -> Grant:
    return Grant(ReservationId(row["reservation_id"]), UserId(row["user_id"]), row["key_id"])


def _grant_state_from_row(row: asyncpg.Record) -> GrantState:
    exists = row["status"] is not None
    return GrantState(
        username=row["username"],
        user_is_active=row["user_is_active"],
        key_is_active=row["key_is_active"],
        may_enter=row["may_enter"],
        status=Status(row["status"]) if exists else None,
        connection=connection_from_row(row) if exists else None,
    )
