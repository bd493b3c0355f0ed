"""Database roles: the privileges of each service on each table.

`gpudev_migrator` owns the schema and is used for migrations only. The other three own nothing. No service may use a
table that is not in GRANTS (tests/integration/database/test_roles.py demands a line for each). Passwords are not set
here: the administrator of PostgreSQL sets them (ALTER ROLE … PASSWORD), or admits roles by certificate or peer.
"""

from collections.abc import Mapping
from types import MappingProxyType

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection
from gpudev.domain.errors import Forbidden
from gpudev.settings import API_ROLE, MIGRATOR_ROLE, PROCESSOR_ROLE, RECONCILER_ROLE

API, PROCESSOR, RECONCILER, MIGRATOR = API_ROLE, PROCESSOR_ROLE, RECONCILER_ROLE, MIGRATOR_ROLE
SERVICE_ROLES = (API, PROCESSOR, RECONCILER)

_READ = "SELECT"
_APPEND = "SELECT, INSERT"
_WRITE = "SELECT, INSERT, UPDATE"
_ALL = "SELECT, INSERT, UPDATE, DELETE"
_QUEUES = ("gpu_reservations", "disk_operations")
_PGMQ_TABLES = tuple(f"pgmq.{kind}_{queue}{dead}" for queue in _QUEUES for dead in ("", "_dlq") for kind in ("q", "a"))
_AUDIT_COLUMNS = "at, username, key_prefix, action, target, address, outcome, status, request_id"
"""All but the id: a role that could choose it could insert before other entries, or so far ahead that no more fit."""
_JUPYTER_WITHOUT_KEYS = "SELECT (reservation_id, token, public_key, state, reason, since)"
_KEYS_WITHOUT_HASHES = "SELECT (key_id, user_id, is_active, created_at, expires_at)"

_COMMON_GRANTS = {"schema_migrations": _READ, "pgmq.meta": _READ, "pgmq.notify_insert_throttle": "SELECT, UPDATE"}
_PLANNING_GRANTS = {
    "reservations": "SELECT, UPDATE",
    "reservation_events": _APPEND,
    "reservation_shares": _ALL,
    "reservation_estimates": _APPEND,
    "reservation_setups": "SELECT (reservation_id), DELETE",
    "reservation_moves": _READ,
    "notify_targets": _READ,
    "notifications": "INSERT",
    "held_gpus": _ALL,
    "gpu_types": _WRITE,
    "cluster_nodes": _ALL,
    "nodes_away": _ALL,
    "node_cordons": _READ,
    "terminal_notices": "SELECT, DELETE",
    "interiors": "SELECT, UPDATE",
    "reservation_users": _READ,
    "jupyter_servers": f"{_JUPYTER_WITHOUT_KEYS}, UPDATE (state, reason), DELETE",
    "leases": _ALL,
    "queue_plans": _WRITE,
    "queue_looks": _ALL,
    "orphans_seen": _ALL,
    "disks": _WRITE,
    "disk_events": _APPEND,
    "disk_operations": _WRITE,
    "disk_snapshots": _WRITE,
    "disk_volumes": _WRITE,
    "disk_contents": _ALL,
    "disk_listings": _ALL,
    "api_users": _READ,
    **dict.fromkeys(_PGMQ_TABLES, _ALL),
}

GRANTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        API: {
            **_COMMON_GRANTS,
            "api_users": _WRITE,
            "api_keys": _WRITE,
            "login_nonces": _ALL,
            "invitations": "SELECT, UPDATE",
            "used_id_tokens": _ALL,
            "proxy_tokens": _ALL,
            "interiors": _WRITE,
            "reservation_users": _ALL,
            "jupyter_servers": _ALL,
            "audit_log": f"SELECT, INSERT ({_AUDIT_COLUMNS})",
            "gpu_types": "SELECT, UPDATE (extensions, is_active, description)",
            "reservations": _WRITE,
            "reservation_events": _APPEND,
            "reservation_shares": "SELECT, DELETE",
            "reservation_estimates": _READ,
            # Written and deleted, never read: so no response of the API can contain a user's secrets.
            "reservation_setups": "SELECT (reservation_id), INSERT, DELETE",
            "reservation_moves": _READ,
            # A trigger queues notifications with their event, whichever service writes it.
            "notify_targets": _READ,
            "notifications": "INSERT",
            "held_gpus": "SELECT, DELETE",
            "idempotency_keys": _APPEND,
            "cluster_nodes": _READ,
            "nodes_away": _READ,
            "node_cordons": _ALL,
            "leases": _READ,
            "queue_plans": _READ,
            "disks": _WRITE,
            "disk_events": _APPEND,
            "disk_operations": _WRITE,
            "disk_snapshots": _READ,
            "disk_volumes": _READ,
            "disk_contents": _READ,
            "pgmq.q_gpu_reservations": "SELECT, INSERT",
            "pgmq.q_disk_operations": "SELECT, INSERT",
        },
        PROCESSOR: {
            **_COMMON_GRANTS,
            **_PLANNING_GRANTS,
            # It launches dev servers, and passes the owners' personalization to them.
            "reservation_setups": "SELECT, DELETE",
            "notify_targets": _ALL,
            "notifications": _ALL,
            # For the cleanup of old rows.
            "api_keys": f"{_KEYS_WITHOUT_HASHES}, DELETE",
            "idempotency_keys": "SELECT, DELETE",
            "login_nonces": "SELECT, DELETE",
            "used_id_tokens": "SELECT, DELETE",
            "invitations": "SELECT, DELETE",
            "proxy_tokens": "SELECT, DELETE",
        },
        # `expire` does a stopped processor's work, so it needs the privileges for planning.
        RECONCILER: {**_COMMON_GRANTS, **_PLANNING_GRANTS},
    }
)
_SEQUENCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        API: ("api_users_user_id_seq", "api_keys_key_id_seq"),
        PROCESSOR: ("queue_plan_versions",),
        RECONCILER: ("queue_plan_versions",),
    }
)
_FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    dict.fromkeys((PROCESSOR, RECONCILER), ("enable_queue_notifications()", "ensure_volume_owner(text)"))
)


async def ensure_roles(connection: Connection) -> None:
    """Create the roles, and allow the migrator to create the schema. Raises Forbidden where we may not create roles."""
    try:
        for role in (*SERVICE_ROLES, MIGRATOR):
            if not await _role_exists(connection, role):
                await connection.execute(f'CREATE ROLE "{role}" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE')
        database = await connection.fetchval("SELECT quote_ident(current_database())")
        await connection.execute(f'GRANT CREATE ON DATABASE {database} TO "{MIGRATOR}"')
        await connection.execute(f'GRANT CREATE, USAGE ON SCHEMA public TO "{MIGRATOR}"')
    except asyncpg.DuplicateObjectError:
        return  # another process creates them at this moment
    except asyncpg.InsufficientPrivilegeError as error:
        raise Forbidden("cannot create roles (needs a database user with CREATEROLE who owns the database)") from error


async def grant_privileges(connection: Connection) -> None:
    """Grant every existing role exactly the privileges above, and revoke all others."""
    present = [role for role in SERVICE_ROLES if await _role_exists(connection, role)]
    if not present:
        return
    async with connection.transaction():
        for role in present:
            for schema in ("public", "pgmq"):
                await connection.execute(f'REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM "{role}"')
                await connection.execute(f'REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM "{role}"')
                await connection.execute(f'GRANT USAGE ON SCHEMA {schema} TO "{role}"')
            for table, rights in GRANTS[role].items():
                await connection.execute(f'GRANT {rights} ON TABLE {table} TO "{role}"')
            for sequence in _SEQUENCES.get(role, ()):
                await connection.execute(f'GRANT USAGE, SELECT ON SEQUENCE {sequence} TO "{role}"')
            for function in _FUNCTIONS.get(role, ()):
                await connection.execute(f'GRANT EXECUTE ON FUNCTION {function} TO "{role}"')


async def _role_exists(connection: Connection, role: str) -> bool:
    return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role))
