"""`users` and `keys`: users, invitations and API keys. Only hashes of keys are stored."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.invitations import Invitation, InvitationLink, parse_invitation_link
from gpudev.domain.access.users import IssuedKey, Role, User, check_username
from gpudev.domain.addresses import parse_listen_address
from gpudev.domain.api_url import InvalidApiUrl, normalize_api_url
from gpudev.embedded.layout import Layout, read_json
from gpudev.embedded.listen_options import listen_warnings
from gpudev.ports.access import KeyRecord, NewInvitation
from gpudev.ports.clock import SystemClock
from gpudev.server_cli.audit import record_command
from gpudev.server_cli.command_runtime import load_server_settings, run_with_stores
from gpudev.settings import Settings

_OWNERS_KEY = "owner of the machine"


@click.group()
def users() -> None:
    """Manage users, their keys and invitations."""


@users.command()
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), default=Role.USER.value, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def add(name: str, role: str, as_json: bool) -> None:
    """Create a user with an API key. The key is shown only once."""

    async def act(stores: Stores) -> tuple[User, IssuedKey]:
        user = await stores.users.add_user(check_username(name), Role(role))
        await record_command(stores, "users add", f"{name} ({role})")
        return user, await stores.users.issue_key(user.user_id, load_server_settings().api_key_ttl, "users add")

    _print_key(*run_with_stores(act), as_json)


@users.command("key")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new_key(name: str, as_json: bool) -> None:
    """Issue another key for an existing user."""

    async def act(stores: Stores) -> tuple[User, IssuedKey]:
        user = await stores.users.find_user(name)
        if user is None:
            raise click.ClickException(
                f"no user named {name!r}; create invitation with: gpu-dev-server users add {name}"
            )
        await record_command(stores, "users key", name)
        return user, await stores.users.issue_key(user.user_id, load_server_settings().api_key_ttl, "users key")

    _print_key(*run_with_stores(act), as_json)


@users.command()
@click.argument("name")
@click.argument("weight", type=click.FloatRange(0, 1e6, min_open=True, max_open=True))
def weight(name: str, weight: float) -> None:
    """Set NAME's share of the cluster relative to other users (the default is 1). Only used with fair share."""

    async def act(stores: Stores) -> None:
        await stores.users.set_weight(name, weight)
        await record_command(stores, "users weight", f"{name} ({weight:g})")

    run_with_stores(act)
    click.echo(f"{name} now has weight {weight:g}")


@users.command()
@click.argument("name")
def disable(name: str) -> None:
    """Disable NAME. All their keys are revoked for good, within a second; their reservations run on."""
    run_with_stores(lambda stores: _set_active(stores, name, False))
    click.echo(f"{name} is disabled; their keys are revoked")


@users.command()
@click.argument("name")
def enable(name: str) -> None:
    """Enable NAME again. Revoked keys stay revoked."""
    run_with_stores(lambda stores: _set_active(stores, name, True))
    click.echo(f"{name} is enabled and needs a new key (gpu-dev login, or: gpu-dev-server users key {name})")


@users.command("role")
@click.argument("name")
@click.argument("role", type=click.Choice([role.value for role in Role]))
def set_role(name: str, role: str) -> None:
    """Set NAME's role. Takes effect within a second."""

    async def act(stores: Stores) -> None:
        await stores.administration.set_role(name, Role(role))
        await record_command(stores, "users role", f"{name} ({role})")

    run_with_stores(act)
    click.echo(f"{name} now has the role {role}")


@users.command("let-in")
@click.argument("name")
@click.argument("provider", type=click.Choice(["aws", "oidc"]))
def let_in(name: str, provider: str) -> None:
    """Allow a user who was created here to log in with PROVIDER: the next login as NAME is linked to the user."""

    async def act(stores: Stores) -> None:
        await stores.accounts.expect_login(name, provider)
        await record_command(stores, "users let-in", f"{name} ({provider})")

    run_with_stores(act)
    click.echo(f"the next login with {provider} as {name} is linked to this user")


@users.command("ensure-owner")
@click.argument("name")
@click.option("--instead-of", "prefix", metavar="PREFIX", help="Revoke the owner's earlier key with this prefix.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ensure_owner(name: str, prefix: str | None, as_json: bool) -> None:
    """Issue a key without expiry for the machine's owner, who becomes an admin if new.

    Requires access to the database's socket, which only the owner has.
    """

    async def act(stores: Stores) -> tuple[User, IssuedKey]:
        user = await stores.users.find_user(name) or await stores.users.add_user(name, Role.ADMIN)
        await record_command(stores, "users ensure-owner", name)
        fresh = await stores.users.issue_key(user.user_id, None, _OWNERS_KEY)
        for key in await stores.administration.list_keys(name) if prefix else []:
            # Only keys issued here or rotated from those: other keys may be in use elsewhere.
            if key.key_prefix == prefix and key.expires_at is None and key.description in (_OWNERS_KEY, "rotated"):
                await stores.administration.revoke_key(key.key_id)
        return user, fresh

    _print_key(*run_with_stores(act), as_json)


@users.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_users(as_json: bool) -> None:
    """List all users."""

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
    expires_at = key.expires_at.isoformat() if key.expires_at else None
    if as_json:
        click.echo(json.dumps({"username": user.username, "api_key": key.secret, "expires_at": expires_at}))
        return
    click.echo(f"user {user.username} ({user.role.value})")
    click.echo(f"key, shown once: {key.secret}")
    click.echo(f"expires: {expires_at}" if expires_at else "expires: never")
    click.echo("to log in: gpu-dev login --key-stdin")


# Invitations: invitation-time links for colleagues.


_MAX_HOURS = 24 * 30


@dataclass(frozen=True, slots=True)
class InvitationTarget:
    """The server that an invitation leads to."""

    api_url: str
    certificate: Path | None
    """The certificate served there. None: unknown."""


@users.command()
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="(default: user, or the role they have)")
@click.option(
    "--hours",
    type=click.FloatRange(0, _MAX_HOURS, min_open=True),
    default=24.0,
    show_default=True,
    help="How long the link is valid.",
)
@click.option("--url", help="Address of the API for the invited user (default: where this system listens).")
@click.option("--no-pin", is_flag=True, help="Omit the key's fingerprint, if their machines trust its authority.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def invite(*, name: str, role: str | None, hours: float, url: str | None, no_pin: bool, as_json: bool) -> None:
    """Print a link with which NAME gets a key (`gpu-dev login LINK`). It can be used once and is shown only once."""
    settings = load_server_settings()
    target = _get_invitation_target(settings, url)
    fingerprint = None
    if target.api_url.startswith("https:") and target.certificate is not None and not no_pin:
        from gpudev.adapters.tls import CertificateFiles  # imports cryptography, which few commands need

        fingerprint = CertificateFiles(target.certificate, target.certificate).fingerprint()

    async def act(stores: Stores) -> NewInvitation:
        requested = Role(role) if role else None
        created = await stores.invitations.invite(name, requested, timedelta(hours=hours), now=SystemClock().now())
        await record_command(stores, "users invite", f"{name} ({role})" if role else name)
        return created

    # Before anything is stored: the link must be usable.
    parse_invitation_link(str(InvitationLink(target.api_url, "x" * 43, fingerprint)))
    created = run_with_stores(act)
    link = InvitationLink(target.api_url, created.secret, fingerprint)
    _print_invitation(created.invitation, link, as_json)


@users.command("invitations")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_invitations(as_json: bool) -> None:
    """List all invitations with their state."""

    async def act(stores: Stores) -> list[Invitation]:
        return await stores.invitations.list_invitations()

    found, now = run_with_stores(act), SystemClock().now()
    if as_json:
        rows = [
            {
                "username": invitation.username,
                "role": invitation.role.value if invitation.role else None,
                "state": invitation.state(now).value,
                "created_at": invitation.created_at.isoformat(),
                "expires_at": invitation.expires_at.isoformat(),
            }
            for invitation in found
        ]
        click.echo(json.dumps(rows))
        return
    for invitation in found:
        role = invitation.role.value if invitation.role else "-"
        expires = f"expires {invitation.expires_at:%Y-%m-%d %H:%M} UTC"
        click.echo(f"{invitation.username:<32}  {role:<9}  {invitation.state(now):<8}  {expires}")


@users.command()
@click.argument("name")
def uninvite(name: str) -> None:
    """Revoke all open invitations for NAME. Keys from used ones stay valid (see `keys revoke`)."""

    async def act(stores: Stores) -> int:
        revoked = await stores.invitations.revoke(name, now=SystemClock().now())
        await record_command(stores, "users uninvite", name)
        return revoked

    click.echo(f"revoked {run_with_stores(act)} invitation(s) for {name}")


def _get_invitation_target(settings: Settings, url: str | None) -> InvitationTarget:
    known = read_json(Layout(settings.state_dir).system_file) or {}
    listen_url, served = known.get("listen_url"), known.get("tls_cert")
    certificate = Path(served) if isinstance(served, str) else None
    if settings.listen:  # an API that was started separately, with the same settings
        from gpudev.adapters.tls import ensure_certificate

        address = parse_listen_address(settings.listen)
        listen_url = address.url
        certificate = ensure_certificate(settings, address.host, SystemClock().now()).certificate
    if url is not None:
        try:
            return InvitationTarget(normalize_api_url(url, "--url"), certificate)
        except InvalidApiUrl as error:
            raise click.ClickException(error.message) from error
    api_url = listen_url or known.get("api_url")
    if not isinstance(api_url, str):
        raise click.ClickException("no system runs on this machine; give the API's address with --url https://…")
    return InvitationTarget(api_url, certificate)


def _print_invitation(invitation: Invitation, link: InvitationLink, as_json: bool) -> None:
    if as_json:
        row = {
            "username": invitation.username,
            "link": str(link),
            "api_url": link.api_url,
            "fingerprint": link.fingerprint,
            "expires_at": invitation.expires_at.isoformat(),
        }
        click.echo(json.dumps(row))
        return
    click.echo(f"Invitation for {invitation.username}, valid once until {invitation.expires_at:%Y-%m-%d %H:%M} UTC:")
    click.echo(f"  gpu-dev login '{link}'")
    if link.api_url.startswith("http:"):
        click.echo("It works only on this machine; to serve other machines: gpu-dev up --listen ADDRESS")
    for warning in listen_warnings():
        click.echo(warning)


# API keys.


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
