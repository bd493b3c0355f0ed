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
    """List and revoke API keys."""


@keys.command("list")
@click.option("--user", "name", help="Only keys of this user.")
@click.option("--all", "ended", is_flag=True, help="Include expired and revoked keys.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_keys(name: str | None, ended: bool, as_json: bool) -> None:
    """List keys with prefix, owner, expiry and last use, newest first."""
    found: list[KeyRecord] = run_with_stores(lambda stores: stores.administration.list_keys(name, ended=ended))
    if as_json:
        click.echo(json.dumps([asdict(key) for key in found], default=lambda moment: moment.isoformat()))
        return
    for key in found:
        expires = f"expires {_format_minute(key.expires_at)}" if key.expires_at else "never expires"
        used = f"used {_format_minute(key.last_used_at)}" if key.last_used_at else "never used"
        state = "" if key.usable else "  (ended)"
        click.echo(
            f"{key.key_id:>6}  {key.key_prefix}…  {key.username:<24}  {expires}, {used}  {key.description}{state}"
        )
    if not found:
        click.echo("no keys")


@keys.command()
@click.argument("key")
def revoke(key: str) -> None:
    """Revoke a key, by its id or its prefix (gpudev_ and at least 4 more characters). Takes effect within a second."""

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
        raise click.ClickException("give the key's id or its prefix (gpudev_ and at least 4 more characters)")
    known = await stores.administration.list_keys(ended=True)
    matching = [k.key_id for k in known if k.key_prefix.startswith(text[:16])]
    if len(matching) != 1:
        count = "no key has" if not matching else f"{len(matching)} keys have"
        raise click.ClickException(f"{count} this prefix; `gpu-dev-server keys list --all` shows the ids")
    return matching[0]


def _format_minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
