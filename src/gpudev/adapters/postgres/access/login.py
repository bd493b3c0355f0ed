"""Login on PostgreSQL: which identity a user is bound to, nonces, invitations and used ID tokens."""

import hashlib
import secrets
from datetime import datetime, timedelta

import asyncpg
import structlog

from gpudev.adapters.postgres.access.users import is_last_admin, lock_admins, user_from_row
from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.access.invitations import Invitation
from gpudev.domain.access.users import Role, User, check_username
from gpudev.domain.errors import Conflict, Forbidden, LimitReached, NotFound
from gpudev.ports.access import INVITATION_PROVIDER, NewInvitation, Nonce, Person

log = structlog.get_logger(__name__)
_NONCE_BYTES = 24
MAX_NONCES = 20_000
"""Requesting a nonce is free for clients, so their number is limited. So many unspent ones are not real logins."""


class PostgresAccounts:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def enrol(self, person: Person, *, came_from: str | None, now: datetime) -> User:
        loses_admin = person.role is not None and person.role is not Role.ADMIN
        async with self._pool.transaction() as connection:
            if loses_admin:
                await lock_admins(connection)
            row = await _ensure_user(connection, person)
            if not row["is_active"]:
                raise Forbidden(f"user {row['username']} is disabled; ask an operator")
            role = person.role
            if loses_admin and await is_last_admin(connection, row["username"]):
                # A group that was renamed or emptied must not leave the system without an admin.
                log.warning("login.last_admin_kept", username=row["username"], role_of_groups=str(person.role))
                role = None
            updated = await connection.fetchrow(
                """
                UPDATE api_users SET role = coalesce($2, role), email = coalesce($3, email),
                       last_login_at = $4, last_login_from = $5
                WHERE user_id = $1 RETURNING *
                """,
                row["user_id"],
                role.value if role else None,
                person.email,
                now,
                came_from,
            )
        assert updated is not None  # the row is locked
        return user_from_row(updated)

    async def expect_login(self, username: str, provider: str) -> None:
        async with self._pool.transaction() as connection:
            row = await connection.fetchrow("SELECT * FROM api_users WHERE username = $1 FOR UPDATE", username)
            if row is None:
                raise NotFound(f"no user named {username!r}")
            if row["identity_subject"] is not None:
                raise Conflict(f"{username} is bound to an identity at {row['identity_provider']} already")
            await connection.execute(
                "UPDATE api_users SET identity_provider = $2 WHERE user_id = $1", row["user_id"], provider
            )


async def _ensure_user(connection: Connection, person: Person) -> asyncpg.Record:
    # Of two concurrent logins of a new user, the second waits and finds the row of the first.
    for lock in (f"identity {person.provider} {person.subject}", f"username {person.username.lower()}"):
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock)
    identity = (person.provider, person.subject)
    row = await connection.fetchrow(
        "SELECT * FROM api_users WHERE identity_provider = $1 AND identity_subject = $2 FOR UPDATE", *identity
    )
    if row is not None:
        return row
    # People read ADA and ada as one name.
    namesakes = await connection.fetch(
        "SELECT * FROM api_users WHERE lower(username) = lower($1) FOR UPDATE", person.username
    )
    for namesake in namesakes:
        if namesake["identity_provider"] != person.provider or namesake["identity_subject"] is not None:
            raise Forbidden(f"the name {person.username} is taken by a user with another login method; ask an operator")
    if namesakes:
        row = await connection.fetchrow(
            "UPDATE api_users SET identity_subject = $2 WHERE user_id = $1 RETURNING *",
            namesakes[0]["user_id"],
            person.subject,
        )
    else:
        row = await connection.fetchrow(
            """
            INSERT INTO api_users (username, identity_provider, identity_subject)
            VALUES ($1, $2, $3) RETURNING *
            """,
            person.username,
            *identity,
        )
    assert row is not None
    return row


class PostgresNonces:
    def __init__(self, pool: Pool, limit: int = MAX_NONCES) -> None:
        self._pool = pool
        self._limit = limit

    async def issue(self, ttl: timedelta, *, now: datetime) -> Nonce:
        nonce = Nonce(secrets.token_urlsafe(_NONCE_BYTES), now + ttl)
        async with self._pool.transaction() as connection:
            await connection.execute("DELETE FROM login_nonces WHERE expires_at <= $1", now)
            is_inserted = await connection.fetchval(
                """
                INSERT INTO login_nonces (nonce, expires_at)
                SELECT $1, $2 WHERE (SELECT count(*) FROM login_nonces) < $3 RETURNING true
                """,
                nonce.value,
                nonce.expires_at,
                self._limit,
            )
        if not is_inserted:
            raise LimitReached("too many unfinished logins; try again in a few minutes")
        return nonce

    async def spend(self, value: str, *, now: datetime) -> bool:
        async with self._pool.acquire() as connection:
            spent = await connection.fetchval(
                "DELETE FROM login_nonces WHERE nonce = $1 RETURNING expires_at > $2", value, now
            )
        return bool(spent)


# Invitations and used ID tokens. Each is accepted once, also when several clients use it at the same time.


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
        # One statement: of two concurrent calls, the second waits for the first and then finds the invitation used.
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
