"""Invitations and used ID tokens on PostgreSQL. Each is accepted once, also when several use it at once."""

import hashlib
import secrets
from datetime import datetime, timedelta

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.access.invitations import Invitation
from gpudev.domain.access.users import Role, check_username
from gpudev.domain.errors import Conflict, NotFound
from gpudev.ports.access import INVITATION_PROVIDER, NewInvitation

_SECRET_BYTES = 32


class PostgresInvitations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def invite(self, username: str, role: Role | None, ttl: timedelta, *, now: datetime) -> NewInvitation:
        check_username(username)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        async with self._pool.transaction() as connection:
            for row in await connection.fetch(
                "SELECT * FROM api_users WHERE lower(username) = lower($1) FOR UPDATE", username
            ):
                if row["username"] != username:
                    raise Conflict(
                        f"a user named {row['username']!r} exists already; use exactly that name to invite them"
                    )
                if row["identity_provider"] not in (None, INVITATION_PROVIDER):
                    raise Conflict(f"{username} logs in through {row['identity_provider']} and needs no invitation")
                if not row["is_active"]:
                    raise Conflict(f"{username} is disabled; enable them first")
                if row["identity_provider"] is None and row["role"] != Role.USER and role is None:
                    # The machine's owner, who may just have the same name as the invited colleague.
                    raise Conflict(
                        f"{username} is an {row['role']} here, and the link would give that role to its user; "
                        f"confirm it with --role {row['role']}"
                    )
                await connection.execute(
                    "UPDATE api_users SET identity_provider = $2 WHERE user_id = $1",
                    row["user_id"],
                    INVITATION_PROVIDER,
                )
            await _revoke_open(connection, username, now)
            inserted = await connection.fetchrow(
                """
                INSERT INTO invitations (secret_hash, username, role, created_at, expires_at)
                VALUES ($1, $2, $3, $4, $5) RETURNING *
                """,
                _hash_secret(secret),
                username,
                role.value if role else None,
                now,
                now + ttl,
            )
        assert inserted is not None
        return NewInvitation(_invitation_from_row(inserted), secret)

    async def accept(self, secret: str, *, now: datetime) -> Invitation | None:
        # One statement: of two at once, the second waits for the first and then finds the invitation used.
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                """
                UPDATE invitations SET used_at = $2
                WHERE secret_hash = $1 AND used_at IS NULL AND revoked_at IS NULL AND expires_at > $2
                RETURNING *
                """,
                _hash_secret(secret),
                now,
            )
        return None if row is None else _invitation_from_row(row)

    async def revoke(self, username: str, *, now: datetime) -> int:
        async with self._pool.acquire() as connection:
            revoked = await _revoke_open(connection, username, now)
        if not revoked:
            raise NotFound(f"no open invitation for {username!r}")
        return revoked

    async def list_invitations(self) -> list[Invitation]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch("SELECT * FROM invitations ORDER BY invitation_id")
        return [_invitation_from_row(row) for row in found]


class PostgresUsedTokens:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def use_token(self, digest: bytes, until: datetime, *, now: datetime) -> bool:
        async with self._pool.acquire() as connection:
            await connection.execute("DELETE FROM used_id_tokens WHERE until <= $1", now)
            is_first_use = await connection.fetchval(
                "INSERT INTO used_id_tokens (digest, until) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING true",
                digest,
                until,
            )
        return bool(is_first_use)


async def _revoke_open(connection: Connection, username: str, now: datetime) -> int:
    revoked = await connection.fetch(
        """
        UPDATE invitations SET revoked_at = $2
        WHERE lower(username) = lower($1) AND used_at IS NULL AND revoked_at IS NULL AND expires_at > $2
        RETURNING invitation_id
        """,
        username,
        now,
    )
    return len(revoked)


def _hash_secret(secret: str) -> bytes:
    """A plain hash is enough: the secret has 256 random bits, so it cannot be guessed."""
    return hashlib.sha256(secret.encode()).digest()


def _invitation_from_row(row: asyncpg.Record) -> Invitation:
    return Invitation(
        invitation_id=row["invitation_id"],
        username=row["username"],
        role=Role(row["role"]) if row["role"] else None,
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        used_at=row["used_at"],
        revoked_at=row["revoked_at"],
    )
