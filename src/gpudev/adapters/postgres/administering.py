"""What admins do to users and keys, on PostgreSQL. Triggers tell the API processes."""

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.access.users import Role, User
from gpudev.domain.errors import Conflict, NotFound
from gpudev.domain.ids import UserId
from gpudev.ports.administering import KeyRecord

_SELECT_KEYS = """
    SELECT k.key_id, u.username, k.key_prefix, k.created_at, k.expires_at, k.last_used_at,
           coalesce(k.description, '') AS description,
           k.is_active AND u.is_active AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()) AS usable
    FROM api_keys k JOIN api_users u USING (user_id)
"""
_UNKNOWN_USER = "there is no user {!r}"


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
        return _user_from_row(row)

    async def set_role(self, username: str, role: Role) -> User:
        async with self._pool.transaction() as connection:
            if role is not Role.ADMIN:
                await _check_admin_remains(connection, username)
            row = await connection.fetchrow(
                "UPDATE api_users SET role = $2 WHERE username = $1 RETURNING *", username, role.value
            )
        if row is None:
            raise NotFound(_UNKNOWN_USER.format(username))
        return _user_from_row(row)

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
            raise NotFound(f"there is no key {key_id}")
        return _key_record_from_row(row)


async def _check_admin_remains(connection: Connection, username: str) -> None:
    await lock_admins(connection)
    if await is_last_admin(connection, username):
        raise Conflict(
            f"{username} is the last active admin; make another one first (gpu-dev-server users role NAME admin)"
        )


async def lock_admins(connection: Connection) -> None:
    """One at a time: two who each take the other's role away would both find an admin left. To be taken before any
    user's row is locked."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('gpudev admins'))")


async def is_last_admin(connection: Connection, username: str) -> bool:
    admins = await connection.fetch("SELECT username FROM api_users WHERE role = 'admin' AND is_active")
    return [row["username"] for row in admins] == [username]


def _user_from_row(row: asyncpg.Record) -> User:
    return User(UserId(row["user_id"]), row["username"], Role(row["role"]), row["is_active"], row["email"])


def _key_record_from_row(row: asyncpg.Record) -> KeyRecord:
    return KeyRecord(**dict(row))
