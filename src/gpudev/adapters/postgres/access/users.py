"""Users and API keys on PostgreSQL. Only hashes of keys are stored; the secret is shown once."""

import hashlib
import secrets
from datetime import datetime, timedelta

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool, from_row
from gpudev.domain.access.users import ApiKey, FairShareUsage, IssuedKey, Role, User, check_username
from gpudev.domain.errors import Conflict, Forbidden, NotFound, Unauthenticated
from gpudev.domain.ids import UserId
from gpudev.ports.access import KeyRecord

KEY_PREFIX = "gpudev_"
_RANDOM_BYTES = 32
_COUNTED_HALF_LIVES = 10
"""Older use has a weight below a thousandth."""


class PostgresUsers:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add_user(self, username: str, role: Role) -> User:
        check_username(username)
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                "INSERT INTO api_users (username, role) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING *",
                username,
                role.value,
            )
        if row is None:
            raise Conflict(f"a user named {username!r} exists already")
        return user_from_row(row)

    async def find_user(self, username: str) -> User | None:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow("SELECT * FROM api_users WHERE username = $1", username)
        return None if row is None else user_from_row(row)

    async def list_users(self) -> list[User]:
        async with self._pool.acquire() as connection:
            return [user_from_row(row) for row in await connection.fetch("SELECT * FROM api_users ORDER BY username")]

    async def set_weight(self, username: str, weight: float) -> None:
        async with self._pool.acquire() as connection:
            updated = await connection.fetchval(
                "UPDATE api_users SET weight = $2 WHERE username = $1 RETURNING user_id", username, weight
            )
        if updated is None:
            raise NotFound(_UNKNOWN_USER.format(username))

    async def usage(self, now: datetime, half_life: timedelta) -> dict[UserId, FairShareUsage]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT u.user_id, u.weight, coalesce(sum(
                    greatest(r.gpu_count, 1)
                    * extract(epoch FROM r.reservation_ended - r.preparing_at) / 3600
                    * power(0.5, greatest(0, extract(epoch FROM $1::timestamptz - r.reservation_ended)) / $2)
                ), 0)::float8 AS gpu_hours
                FROM api_users u LEFT JOIN reservations r
                  ON r.user_id = u.user_id AND r.preparing_at IS NOT NULL
                 AND r.reservation_ended > $1::timestamptz - $3::interval
                WHERE u.is_active
                GROUP BY u.user_id
                """,
                now,
                half_life.total_seconds(),
                half_life * _COUNTED_HALF_LIVES,
            )
        return {UserId(row["user_id"]): FairShareUsage(row["gpu_hours"], row["weight"]) for row in found}

    async def issue_key(self, user_id: UserId, ttl: timedelta | None, description: str) -> IssuedKey:
        async with self._pool.acquire() as connection:
            return await _issue_key(connection, user_id, ttl, description)

    async def find_key(self, secret: str) -> ApiKey | None:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                """
                SELECT k.key_id, k.key_hash, k.key_prefix, k.created_at, k.expires_at, k.is_active,
                       coalesce(k.last_used_at < clock_timestamp() - interval '1 minute', true) AS is_use_unrecorded,
                       u.user_id, u.username, u.role, u.email
                FROM api_keys k JOIN api_users u USING (user_id)
                WHERE k.key_hash = $1 AND k.is_active AND u.is_active
                  AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
                """,
                hash_key(secret),
            )
            # The search by hash leaks nothing about the key through its duration. Compared in constant time anyway.
            if row is not None and not secrets.compare_digest(row["key_hash"], hash_key(secret)):
                row = None
            if row is not None and row["is_use_unrecorded"]:
                # Minutes are exact enough, and save a commit per request.
                await connection.execute(
                    "UPDATE api_keys SET last_used_at = clock_timestamp() WHERE key_id = $1", row["key_id"]
                )
        if row is None:
            return None
        user = User(UserId(row["user_id"]), row["username"], Role(row["role"]), True, row["email"])
        return ApiKey(row["key_id"], user, row["key_prefix"], row["created_at"], row["expires_at"], row["is_active"])

    async def rotate_key(self, key_id: int, ttl: timedelta | None) -> IssuedKey:
        async with self._pool.transaction() as connection:
            # The user first, then the key: the same order in which disabling a user locks them.
            await connection.execute(
                "SELECT FROM api_users WHERE user_id = (SELECT user_id FROM api_keys WHERE key_id = $1) FOR SHARE",
                key_id,
            )
            old = await connection.fetchrow(
                """
                UPDATE api_keys k SET is_active = false FROM api_users u
                WHERE k.key_id = $1 AND k.is_active AND u.user_id = k.user_id AND u.is_active
                RETURNING k.user_id, k.expires_at, u.identity_subject IS NOT NULL AS has_identity
                """,
                key_id,
            )
            if old is None:
                raise Unauthenticated("this key was revoked; log in again")
            # A user of an identity provider must log in again at the key's end: rotation does not extend it.
            latest = old["expires_at"] if old["has_identity"] else None
            return await _issue_key(connection, UserId(old["user_id"]), ttl, "rotated", no_later_than=latest)

    async def revoke_key(self, key_id: int) -> bool:
        async with self._pool.acquire() as connection:
            revoked = await connection.fetchval(
                "UPDATE api_keys SET is_active = false WHERE key_id = $1 AND is_active RETURNING true", key_id
            )
        return bool(revoked)


def hash_key(secret: str) -> str:
    """A plain hash is enough: the secret has 256 random bits, so it cannot be guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def _issue_key(
    connection: Connection,
    user_id: UserId,
    ttl: timedelta | None,
    description: str,
    *,
    no_later_than: datetime | None = None,
) -> IssuedKey:
    secret = KEY_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    # FOR SHARE: a concurrent disabling of this user waits, and then finds this key among those to revoke.
    inserted = await connection.fetchrow(
        """
        WITH owner AS (SELECT user_id FROM api_users WHERE user_id = $1 AND is_active FOR SHARE)
        INSERT INTO api_keys (user_id, key_hash, key_prefix, expires_at, description)
        SELECT user_id, $2, $3, least(clock_timestamp() + $4::interval, $6::timestamptz), $5 FROM owner
        RETURNING expires_at
        """,
        user_id,
        hash_key(secret),
        secret[:16],
        ttl,
        description,
        no_later_than,
    )
    if inserted is None:
        name = await connection.fetchval("SELECT username FROM api_users WHERE user_id = $1", user_id)
        raise Forbidden(f"user {name} is disabled; an operator can enable them")
    return IssuedKey(secret, inserted["expires_at"])


def user_from_row(row: asyncpg.Record) -> User:
    return from_row(User, row, role=Role(row["role"]))


# Administration of users and keys. Triggers notify the API processes.

_SELECT_KEYS = """
    SELECT k.key_id, u.username, k.key_prefix, k.created_at, k.expires_at, k.last_used_at,
           coalesce(k.description, '') AS description,
           k.is_active AND u.is_active AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()) AS usable
    FROM api_keys k JOIN api_users u USING (user_id)
"""
_UNKNOWN_USER = "no user named {!r}"


class PostgresUserAdministration:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def set_active(self, username: str, active: bool) -> User:
        async with self._pool.transaction() as connection:
            if not active:
                await _check_admin_remains(connection, username)
            row = await connection.fetchrow(
                "UPDATE api_users SET is_active = $2 WHERE username = $1 RETURNING *", username, active
            )
            if row is None:
                raise NotFound(_UNKNOWN_USER.format(username))
            if not active:
                await connection.execute(
                    "UPDATE api_keys SET is_active = false WHERE user_id = $1 AND is_active", row["user_id"]
                )
        return user_from_row(row)

    async def set_role(self, username: str, role: Role) -> User:
        async with self._pool.transaction() as connection:
            if role is not Role.ADMIN:
                await _check_admin_remains(connection, username)
            row = await connection.fetchrow(
                "UPDATE api_users SET role = $2 WHERE username = $1 RETURNING *", username, role.value
            )
        if row is None:
            raise NotFound(_UNKNOWN_USER.format(username))
        return user_from_row(row)

    async def list_keys(self, username: str | None = None, *, ended: bool = False) -> list[KeyRecord]:
        async with self._pool.acquire() as connection:
            if username is not None and not await connection.fetchval(
                "SELECT EXISTS (SELECT FROM api_users WHERE username = $1)", username
            ):
                raise NotFound(_UNKNOWN_USER.format(username))
            rows = await connection.fetch(
                f"SELECT * FROM ({_SELECT_KEYS}) k WHERE ($1::text IS NULL OR username = $1) AND (usable OR $2) "  # noqa: S608
                "ORDER BY key_id DESC",
                username,
                ended,
            )
        return [_key_record_from_row(row) for row in rows]

    async def revoke_key(self, key_id: int) -> KeyRecord:
        async with self._pool.transaction() as connection:
            await connection.execute("UPDATE api_keys SET is_active = false WHERE key_id = $1 AND is_active", key_id)
            row = await connection.fetchrow(f"{_SELECT_KEYS} WHERE k.key_id = $1", key_id)
        if row is None:
            raise NotFound(f"key {key_id} not found")
        return _key_record_from_row(row)


async def _check_admin_remains(connection: Connection, username: str) -> None:
    await lock_admins(connection)
    if await is_last_admin(connection, username):
        raise Conflict(
            f"{username} is the last active admin; make another one first (gpu-dev-server users role NAME admin)"
        )


async def lock_admins(connection: Connection) -> None:
    """Serializes changes of admins: two admins who demote each other concurrently would both find one left.

    Take it before locking any user's row.
    """
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('gpudev admins'))")


async def is_last_admin(connection: Connection, username: str) -> bool:
    admins = await connection.fetch("SELECT username FROM api_users WHERE role = 'admin' AND is_active")
    return [row["username"] for row in admins] == [username]


def _key_record_from_row(row: asyncpg.Record) -> KeyRecord:
    return KeyRecord(**dict(row))
