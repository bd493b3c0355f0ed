"""`users`: users, their keys, and invitations."""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.invitations import Invitation, InvitationLink, parse_invitation_link
from gpudev.domain.access.users import IssuedKey, Role, User, check_username
from gpudev.domain.addresses import parse_listen_address
from gpudev.domain.api_url import InvalidApiUrl, normalize_api_url
from gpudev.embedded.layout import Layout, read_json
from gpudev.embedded.listen_options import listen_warnings
from gpudev.ports.access import NewInvitation
from gpudev.ports.clock import SystemClock
from gpudev.server_cli.audit import record_command
from gpudev.server_cli.command_runtime import load_server_settings, run_with_stores
from gpudev.settings import Settings

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
            raise click.ClickException(f"no user named {name!r}; create one with: gpu-dev-server users add {name}")
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


# Invitations: one-time links for colleagues.


_MOST_HOURS = 24 * 30


@dataclass(frozen=True, slots=True)
class InvitationTarget:
    """Where a colleague comes in."""

    api_url: str
    certificate: Path | None
    """The one that is shown there, as far as it is ours."""


@users.command()
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="(default: user, or the one they have)")
@click.option(
    "--hours",
    type=click.FloatRange(0, _MOST_HOURS, min_open=True),
    default=24.0,
    show_default=True,
    help="How long the link is good.",
)
@click.option("--url", help="Address of the API as they reach it (default: where this system listens).")
@click.option("--no-pin", is_flag=True, help="Leave the key's fingerprint out: their machines know its authority.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def invite(*, name: str, role: str | None, hours: float, url: str | None, no_pin: bool, as_json: bool) -> None:
    """Print a link with which NAME gets a key by `gpu-dev login LINK`. It is good once, and shown this once."""
    settings = load_server_settings()
    door = _get_invitation_target(settings, url)
    fingerprint = None
    if door.api_url.startswith("https:") and door.certificate is not None and not no_pin:
        from gpudev.adapters.tls import CertificateFiles  # brings cryptography, which few commands need

        fingerprint = CertificateFiles(door.certificate, door.certificate).fingerprint()

    async def act(stores: Stores) -> NewInvitation:
        wanted = Role(role) if role else None
        made = await stores.invitations.invite(name, wanted, timedelta(hours=hours), now=SystemClock().now())
        await record_command(stores, "users invite", f"{name} ({role})" if role else name)
        return made

    # Before anything is written down: a link that nobody could follow is none.
    parse_invitation_link(str(InvitationLink(door.api_url, "x" * 43, fingerprint)))
    made = run_with_stores(act)
    link = InvitationLink(door.api_url, made.secret, fingerprint)
    _print_invitation(made.invitation, link, as_json)


@users.command("invitations")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_invitations(as_json: bool) -> None:
    """All invitations, and what became of them."""

    async def act(stores: Stores) -> list[Invitation]:
        return await stores.invitations.list_invitations()

    found, now = run_with_stores(act), SystemClock().now()
    if as_json:
        rows = [
            {
                "username": one.username,
                "role": one.role.value if one.role else None,
                "state": one.state(now).value,
                "created_at": one.created_at.isoformat(),
                "expires_at": one.expires_at.isoformat(),
            }
            for one in found
        ]
        click.echo(json.dumps(rows))
        return
    for one in found:
        role = one.role.value if one.role else "-"
        click.echo(f"{one.username:<32}  {role:<9}  {one.state(now):<8}  ends {one.expires_at:%Y-%m-%d %H:%M} UTC")


@users.command()
@click.argument("name")
def uninvite(name: str) -> None:
    """Make every open invitation for NAME worthless. Whoever has used theirs keeps their key (see `keys revoke`)."""

    async def act(stores: Stores) -> int:
        revoked = await stores.invitations.revoke(name, now=SystemClock().now())
        await record_command(stores, "users uninvite", name)
        return revoked

    click.echo(f"revoked {run_with_stores(act)} invitation(s) for {name}")


def _get_invitation_target(settings: Settings, url: str | None) -> InvitationTarget:
    known = read_json(Layout(settings.state_dir).system_file) or {}
    listening, shown = known.get("listen_url"), known.get("tls_cert")
    certificate = Path(shown) if isinstance(shown, str) else None
    if settings.listen:  # an API that was started by itself, with these very settings
        from gpudev.adapters.tls import ensure_certificate

        address = parse_listen_address(settings.listen)
        listening = address.url
        certificate = ensure_certificate(settings, address.host, SystemClock().now()).certificate
    if url is not None:
        try:
            return InvitationTarget(normalize_api_url(url, "--url"), certificate)
        except InvalidApiUrl as error:
            raise click.ClickException(error.message) from error
    where = listening or known.get("api_url")
    if not isinstance(where, str):
        raise click.ClickException("no system runs on this machine: say where the API is with --url https://…")
    return InvitationTarget(where, certificate)


def _print_invitation(invitation: Invitation, link: InvitationLink, as_json: bool) -> None:
    if as_json:
        about = {
            "username": invitation.username,
            "link": str(link),
            "api_url": link.api_url,
            "fingerprint": link.fingerprint,
            "expires_at": invitation.expires_at.isoformat(),
        }
        click.echo(json.dumps(about))
        return
    click.echo(
        f"{invitation.username} gets a key with this link, once, until {invitation.expires_at:%Y-%m-%d %H:%M} UTC:"
    )
    click.echo(f"  gpu-dev login '{link}'")
    if link.api_url.startswith("http:"):
        click.echo("It works on this machine only; for others start with: gpu-dev up --listen ADDRESS")
    for sentence in listen_warnings():
        click.echo(sentence)
