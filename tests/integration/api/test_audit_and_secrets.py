"""What is left behind: of every change its line, and of secrets nothing."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from click.testing import CliRunner

from gpudev.adapters.postgres.database.roles import API
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Conflict
from gpudev.main import cli
from gpudev.ports.access import AuditEntry, AuditQuery, redact_keys, sanitize_text
from gpudev.settings import DatabaseSettings
from support.api.harness import Api, submit
from support.clock import ManualClock


async def test_the_audit_log_tells_which_role_was_given_and_which_priority(api: Api) -> None:
    root = await api.as_user("root", Role.ADMIN)
    job = await submit(await api.as_user("ada"))
    await root.post("/v1/users", json={"username": "eve", "role": "operator"})
    await root.post("/v1/users/eve/role", json={"role": "admin"})
    await root.post("/v1/users/nobody/role", json={"role": "admin"})
    await root.post(f"/v1/jobs/{job['job_id']}/priority", json={"priority": 7})
    await api.services.trail.flush()
    entries = await api.services.audit_log.find_entries(AuditQuery(username="root"))
    assert [(entry.target, entry.status) for entry in entries] == [
        ("eve (operator)", 201),
        ("eve (admin)", 200),
        ("nobody (admin)", 404),
        (f"{job['job_id']} (7)", 200),
    ]


async def test_no_command_of_operators_changes_anything_without_a_line(
    database: DatabaseSettings, stores: Stores
) -> None:
    await stores.users.add_user("ada", Role.USER)
    async with stores.pool.acquire() as connection:
        dead, waiting = [
            await connection.fetchval("SELECT pgmq.send($1, $2::jsonb)", queue, {"id": "x"})
            for queue in ("disk_operations_dlq", "disk_operations")
        ]
    await run(database, "users", "weight", "ada", "2.5")
    await run(database, "queue", "drop", "disk_operations", str(waiting))
    await run(database, "queue", "retry", "disk_operations", str(dead))
    entries = await stores.audit_log.find_entries(AuditQuery())
    assert [(entry.action, entry.target) for entry in entries] == [
        ("gpu-dev-server users weight", "ada (2.5)"),
        ("gpu-dev-server queue drop", f"{waiting} of disk_operations"),
        ("gpu-dev-server queue retry", f"{dead} of disk_operations"),
    ]


@pytest.mark.parametrize("number", [0, 2**63 - 1], ids=["before all others", "so that none follows"])
async def test_who_took_the_api_over_cannot_choose_where_a_line_stands(
    stores_of: Callable[[str], Stores], number: int
) -> None:
    theirs = stores_of(API)
    insert = (
        "INSERT INTO audit_log (entry_id, at, action, outcome) OVERRIDING SYSTEM VALUE VALUES ($1, now(), 'x', 'ok')"
    )
    async with theirs.pool.acquire() as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(insert, number)
    await theirs.audit_log.append([AuditEntry(datetime.now(UTC), "POST /x", "ok")])
    assert len(await theirs.audit_log.find_entries(AuditQuery())) == 1


async def test_an_invitation_gives_an_admins_rights_only_where_that_is_said(stores: Stores, clock: ManualClock) -> None:
    """On a machine whose owner is called like the colleague who is meant."""
    await stores.users.add_user("ada", Role.ADMIN)
    with pytest.raises(Conflict, match="--role admin"):
        await stores.invitations.invite("ada", None, timedelta(hours=1), now=clock.now())
    made = await stores.invitations.invite("ada", Role.ADMIN, timedelta(hours=1), now=clock.now())
    assert made.invitation.role is Role.ADMIN


@pytest.mark.parametrize("prefix", ["gpudev_", "gpudevt_"], ids=["key", "token for a session"])
def test_what_opens_something_is_cut_down_wherever_it_stands(prefix: str) -> None:
    secret = prefix + "Ab3-_xYz" * 5
    for shown in (redact_keys(f"GET /v1/jobs/{secret}/ssh"), sanitize_text(f"/v1/jobs/{secret}")):
        assert secret[:16] + "…" in shown
        assert secret[:20] not in shown


async def run(database: DatabaseSettings, *arguments: str) -> None:
    names = {"POSTGRES_HOST": "host", "POSTGRES_PORT": "port", "POSTGRES_USER": "user", "POSTGRES_DB": "database"}
    environment = {variable: str(getattr(database, field)) for variable, field in names.items()}
    # In a thread of its own: the command runs its own loop.
    done = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments), env=environment)
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
