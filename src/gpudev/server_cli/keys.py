"""`keys`: lists and revokes API keys. Only hashes are stored."""

import json
from dataclasses import asdict
from datetime import datetime

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.ports.access import KeyRecord
from gpudev.server_cli.audit import record_command
from gpudev.server_cli.command_runtime import run_with_stores


@click.group()
def keys() -> None:
    """API keys."""


@keys.command("list")
@click.option("--user", "name", help="Only of this user.")
@click.option("--all", "ended", is_flag=True, help="Also those that can no longer be used.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_keys(name: str | None, ended: bool, as_json: bool) -> None:
    """Keys with their first letters, owner, end and last use, the newest first."""
    found: list[KeyRecord] = run_with_stores(lambda stores: stores.administration.list_keys(name, ended=ended))
    if as_json:
        click.echo(json.dumps([asdict(key) for key in found], default=lambda moment: moment.isoformat()))
        return
    for key in found:
        ends = f"ends {_format_minute(key.expires_at)}" if key.expires_at else "does not end"
        used = f"used {_format_minute(key.last_used_at)}" if key.last_used_at else "never used"
        state = "" if key.usable else "  (over)"
        click.echo(f"{key.key_id:>6}  {key.key_prefix}…  {key.username:<24}  {ends}, {used}  {key.description}{state}")
    if not found:
        click.echo("there are none")


@keys.command()
@click.argument("key")
def revoke(key: str) -> None:
    """End a key within a second: by its number, or by its first letters (gpudev_ and at least 4 more)."""

    async def act(stores: Stores) -> KeyRecord:
        revoked = await stores.administration.revoke_key(await _get_key_id(stores, key))
        await record_command(stores, "keys revoke", f"{revoked.key_id} of {revoked.username}")
        return revoked

    revoked = run_with_stores(act)
    click.echo(f"key {revoked.key_id} ({revoked.key_prefix}…) of {revoked.username} is revoked")


async def _get_key_id(stores: Stores, text: str) -> int:
    if text.isdigit():
        return int(text[:18])
    if not text.startswith("gpudev_") or len(text) < len("gpudev_") + 4:
        raise click.ClickException("say which one: its number, or its first letters (gpudev_ and at least 4 more)")
    known = await stores.administration.list_keys(ended=True)
    matching = [k.key_id for k in known if k.key_prefix.startswith(text[:16])]
    if len(matching) != 1:
        there = "no key" if not matching else f"{len(matching)} keys"
        raise click.ClickException(f"{there} begin so; `gpu-dev-server keys list --all` tells their numbers")
    return matching[0]


def _format_minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
