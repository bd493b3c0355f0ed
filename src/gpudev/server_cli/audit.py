"""`audit`: shows the audit log. Also records operators' commands in it."""

import asyncio
import contextlib
import getpass
import json
import os
import socket
from dataclasses import asdict, replace
from datetime import timedelta

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.ports.access import AuditEntry, AuditQuery, sanitize_text
from gpudev.ports.clock import SystemClock
from gpudev.server_cli.command_runtime import run_with_stores

_POLL_SECONDS = 0.5


@click.command()
@click.option("--user", help="Only entries of this user.")
@click.option("--action", help="Only actions that contain this text (an endpoint's path, `users disable`, …).")
@click.option("--target", help="Only targets that contain this text (an id, a name).")
@click.option("--address", help="Only from this address.")
@click.option("--outcome", help="Only this outcome (`ok`, `unauthenticated`, `forbidden`, …).")
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="Only the last HOURS hours.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Maximum number of entries, the newest.",
)
@click.option("--follow", is_flag=True, help="Continue with new entries until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one entry per line.")
def audit(
    *,
    user: str | None,
    action: str | None,
    target: str | None,
    address: str | None,
    outcome: str | None,
    hours: float | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the audit log: every change, login and denied request. The server never changes or removes entries."""
    since = SystemClock().now() - timedelta(hours=hours) if hours else None
    query = AuditQuery(user, action, target, address, outcome, since, limit=limit)

    async def act(stores: Stores) -> None:
        after = await _print_entries(stores, query, as_json)
        while follow:
            await asyncio.sleep(_POLL_SECONDS)
            after = await _print_entries(stores, replace(query, after=after, limit=100_000), as_json)

    with contextlib.suppress(KeyboardInterrupt):
        run_with_stores(act)


async def _print_entries(stores: Stores, query: AuditQuery, as_json: bool) -> int:
    found = await stores.audit_log.find_entries(query)
    for entry in found:
        click.echo(json.dumps(asdict(entry) | {"at": entry.at.isoformat()}) if as_json else _format_entry(entry))
    return found[-1].entry_id if found else query.after


def _format_entry(entry: AuditEntry) -> str:
    username = sanitize_text(entry.username or "?")
    key = f" [{entry.key_prefix}…]" if entry.key_prefix else ""
    target = f"  {sanitize_text(entry.target)}" if entry.target else ""
    address = entry.address or "-"
    outcome = sanitize_text(entry.outcome)
    return f"{entry.at:%Y-%m-%d %H:%M:%S} UTC  {username}{key}  {address}  {entry.action}{target}  {outcome}"


# Recording of operators' commands, with the OS username.


async def record_command(stores: Stores, action: str, target: str | None = None, outcome: str = "ok") -> None:
    entry = AuditEntry(
        at=SystemClock().now(),
        action=f"gpu-dev-server {action}",
        outcome=outcome,
        username=console_user(),
        target=sanitize_text(target) if target else None,
    )
    await stores.audit_log.append([entry])


def console_user() -> str:
    return f"{_os_user()}@{socket.gethostname()} (console)"


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the uid may have no name
        return f"uid {os.getuid()}"
