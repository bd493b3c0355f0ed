"""`users invite`, `users invitations`, `users uninvite`: letting a colleague in by a link that is good once."""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.invitations import Invitation, InvitationLink, parse_invitation_link
from gpudev.domain.access.users import Role
from gpudev.domain.listening import parse_listen_address
from gpudev.embedded.layout import Layout, read_json
from gpudev.embedded.listen_options import listen_warnings
from gpudev.ports.clock import SystemClock
from gpudev.ports.invitations import NewInvitation
from gpudev.sdk.api_address import check_url
from gpudev.sdk.errors import ClientError
from gpudev.server_cli.command_runtime import load_server_settings, run_with_stores
from gpudev.server_cli.recording import record_command
from gpudev.server_cli.users import users
from gpudev.settings import Settings

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
            return InvitationTarget(check_url(url, "--url"), certificate)
        except ClientError as error:
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


COMMANDS = (users,)
"""With these below it."""
