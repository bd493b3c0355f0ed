"""`users`: who may come in, as whom, and who no more. Every change is in the audit log."""

import json

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import IssuedKey, Role, User, check_username
from gpudev.server_cli.command_runtime import load_server_settings, run_with_stores
from gpudev.server_cli.recording import record_command

_OWNERS_KEY = "owner of the machine"


@click.group()
def users() -> None:
    """Users and their keys."""


@users.command()
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), default=Role.USER.value, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def add(name: str, role: str, as_json: bool) -> None:
    """Make a user with a key of its own. The key is shown once."""

    async def act(stores: Stores) -> tuple[User, IssuedKey]:
        user = await stores.users.add_user(check_username(name), Role(role))
        await record_command(stores, "users add", f"{name} ({role})")
        return user, await stores.users.issue_key(user.user_id, load_server_settings().api_key_ttl, "users add")

    _print_key(*run_with_stores(act), as_json)


@users.command("key")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new_key(name: str, as_json: bool) -> None:
    """Give an existing user a further key."""

    async def act(stores: Stores) -> tuple[User, IssuedKey]:
        user = await stores.users.find_user(name)
        if user is None:
            raise click.ClickException(f"there is no user {name!r}; make one with: gpu-dev-server users add {name}")
        await record_command(stores, "users key", name)
        return user, await stores.users.issue_key(user.user_id, load_server_settings().api_key_ttl, "users key")

    _print_key(*run_with_stores(act), as_json)


@users.command()
@click.argument("name")
@click.argument("weight", type=click.FloatRange(0, 1e6, min_open=True, max_open=True))
def weight(name: str, weight: float) -> None:
    """How much of the cluster is meant for NAME, relative to others (1 is usual). Counts where fair share is on."""

    async def act(stores: Stores) -> None:
        await stores.users.set_weight(name, weight)
        await record_command(stores, "users weight", f"{name} ({weight:g})")

    run_with_stores(act)
    click.echo(f"{name} has weight {weight:g} now")


@users.command()
@click.argument("name")
def disable(name: str) -> None:
    """Let NAME in no more. All keys of theirs end within a second, for good; reservations run on until cancelled."""
    run_with_stores(lambda stores: _set_active(stores, name, False))
    click.echo(f"{name} is disabled; their keys are revoked")


@users.command()
@click.argument("name")
def enable(name: str) -> None:
    """Let NAME in again. Keys that were revoked stay so."""
    run_with_stores(lambda stores: _set_active(stores, name, True))
    click.echo(f"{name} is enabled; they need a new key (gpu-dev login, or: gpu-dev-server users key {name})")


@users.command("role")
@click.argument("name")
@click.argument("role", type=click.Choice([role.value for role in Role]))
def set_role(name: str, role: str) -> None:
    """Make NAME a user, an operator or an admin. It holds within a second."""

    async def act(stores: Stores) -> None:
        await stores.administration.set_role(name, Role(role))
        await record_command(stores, "users role", f"{name} ({role})")

    run_with_stores(act)
    click.echo(f"{name} is {'a' if role == 'user' else 'an'} {role} now")


@users.command("let-in")
@click.argument("name")
@click.argument("provider", type=click.Choice(["aws", "oidc"]))
def let_in(name: str, provider: str) -> None:
    """Let a user who was made here log in through PROVIDER: whom it next calls NAME is NAME from then on."""

    async def act(stores: Stores) -> None:
        await stores.accounts.expect_login(name, provider)
        await record_command(stores, "users let-in", f"{name} ({provider})")

    run_with_stores(act)
    click.echo(f"whom {provider} next calls {name} is this user")


@users.command("ensure-owner")
@click.argument("name")
@click.option("--instead-of", "prefix", metavar="PREFIX", help="End the owner's key that begins so, once given before.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ensure_owner(name: str, prefix: str | None, as_json: bool) -> None:
    """The machine's owner: made an administrator if new, and given a key that does not end by itself.

    Whoever can open the database's socket (the owner alone) can run this.
    """

    async def act(stores: Stores) -> tuple[User, IssuedKey]:
        user = await stores.users.find_user(name) or await stores.users.add_user(name, Role.ADMIN)
        await record_command(stores, "users ensure-owner", name)
        fresh = await stores.users.issue_key(user.user_id, None, _OWNERS_KEY)
        for key in await stores.administration.list_keys(name) if prefix else []:
            # Only what was given here, or came of it: a key that others may use, too, is not ours to end.
            if key.key_prefix == prefix and key.expires_at is None and key.description in (_OWNERS_KEY, "rotated"):
                await stores.administration.revoke_key(key.key_id)
        return user, fresh

    _print_key(*run_with_stores(act), as_json)


@users.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_users(as_json: bool) -> None:
    """All users."""

    async def act(stores: Stores) -> list[User]:
        return await stores.users.list_users()

    found = run_with_stores(act)
    if as_json:
        rows = [{"username": u.username, "role": u.role.value, "is_active": u.is_active} for u in found]
        click.echo(json.dumps(rows))
        return
    for user in found:
        click.echo(f"{user.username:<32}  {user.role.value:<9}  {'active' if user.is_active else 'disabled'}")


async def _set_active(stores: Stores, name: str, active: bool) -> None:
    await stores.administration.set_active(name, active)
    await record_command(stores, "users enable" if active else "users disable", name)


def _print_key(user: User, key: IssuedKey, as_json: bool) -> None:
    ends = key.expires_at.isoformat() if key.expires_at else None
    if as_json:
        click.echo(json.dumps({"username": user.username, "api_key": key.secret, "expires_at": ends}))
        return
    click.echo(f"user {user.username} ({user.role.value})")
    click.echo(f"key, shown once: {key.secret}")
    click.echo(f"it ends {ends}" if ends else "it does not end by itself")
    click.echo("they log in with: gpu-dev login --key-stdin")
