"""`gpu-dev login` and `gpu-dev logout`."""

import json
import sys

import click

from gpudev import paths
from gpudev.cli import output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.sdk import credentials
from gpudev.sdk.credentials import KEY_VARIABLE, Credential, check_key
from gpudev.sdk.errors import Forbidden, Unauthenticated
from gpudev.sdk.http.endpoints import list_jobs

_LONGEST_KEY = 4096


@click.command()
@click.argument("link", required=False)
@click.option("--profile", metavar="NAME", help="Log in with this profile of your AWS configuration.")
@click.option("--method", type=click.Choice(["aws", "oidc"]), help="Of the ways the server offers, take this one.")
@click.option("--device/--browser", "by_device", default=None, help="OIDC: with a code on another device, or here.")
@click.option("--key-stdin", is_flag=True, help="Store a key you were given; it is read from standard input.")
@click.option("--rotate", is_flag=True, help="Replace the key you have; the old one ends at once.")
@click.option("--again", is_flag=True, help="In the way you last did; nobody is asked anything.")
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
@click.option("--json", "as_json", is_flag=True, help="Print who you are as JSON.")
def login(
    *,
    link: str | None,
    profile: str | None,
    method: str | None,
    by_device: bool | None,
    key_stdin: bool,
    rotate: bool,
    again: bool,
    api_url: str | None,
    as_json: bool,
) -> None:
    """Get an API key in the way the server offers, or with the LINK of an invitation, or store one you were given.

    An invitation also says where the API is and how to know it; `-` reads it from standard input.

    Where the server lets people in by their AWS credentials, these are found as every AWS program finds them; only a
    signed request leaves this machine, never the secret key. When the key ends, commands get the next one by
    themselves.
    """
    chosen = bool(profile or method or by_device is not None)
    if sum((key_stdin, rotate, again, chosen, link is not None)) > 1:
        raise usage_error("--key-stdin, --rotate, --again, an invitation and a way to log in do not go together")
    session = CommandSession(api_url)
    if link is not None:
        from gpudev.cli.commands.access import invitation_login

        session, credential = invitation_login.accept_invitation(link, api_url)
    elif key_stdin:
        credential = _store_given_key(session)
    elif rotate:
        credential = _rotate(session)
    elif again and (stored := session.find_stored_credential()) is not None and stored.login:
        credential = session.log_in_again(stored)
    elif session.address.embedded and not chosen:
        credential = session.log_in_as_owner()
    elif again:
        raise CliError(
            ExitCode.AUTH, f"nothing is known of how you log in to {session.address.url}", "Run `gpu-dev login`"
        )
    else:
        from gpudev.cli import login_methods

        credential = session.store_credential(
            login_methods.log_in(session, login_methods.LoginOptions(method, profile, by_device))
        )
    if as_json:
        about = {"api_url": session.address.url, "username": credential.username, "expires_at": credential.expires_at}
        output.write_line(json.dumps(about))
    else:
        name = f" as {output.clean(credential.username)}" if credential.username else ""
        output.write_line(f"Logged in to {session.address.url}{name}.")
    _mention_variable(session)


@click.command()
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
def logout(api_url: str | None) -> None:
    """End the stored API key, at the server and here."""
    session = CommandSession(api_url)
    stored = session.find_stored_credential()
    if stored is None:
        output.write_line(f"No key for {session.address.url} is stored here.")
        _mention_variable(session)
        return
    try:
        session.api_with_key(stored.api_key).revoke_key()
    finally:
        # Whatever the server says: who logs out wants no key lying here.
        credentials.remove_credential(paths.credentials_file(session.env), session.address.url)
    output.write_line(f"Logged out of {session.address.url}.")
    _mention_variable(session)


def _rotate(session: CommandSession) -> Credential:
    from gpudev.sdk.http.access_endpoints import rotate_key

    stored = session.find_stored_credential()
    if stored is None:
        raise CliError(ExitCode.AUTH, f"no key for {session.address.url} is stored here", "Run `gpu-dev login`")
    view = session.api_with_key(stored.api_key).fetch(rotate_key()).value
    ends = view.expires_at.isoformat() if view.expires_at else None
    return session.store_credential(stored._replace(api_key=view.api_key, username=view.username, expires_at=ends))


def _store_given_key(session: CommandSession) -> Credential:
    """Only a key that works is kept."""
    key = check_key(_read_key(), "what was given")
    try:
        session.api_with_key(key).fetch(list_jobs({"limit": 1}))
    except (Unauthenticated, Forbidden) as error:
        raise CliError(
            ExitCode.AUTH, f"{session.address.url} does not take this key", "Ask its operator for another"
        ) from error
    return session.store_credential(Credential(key))


def _read_key() -> str:
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        return str(click.prompt("API key", hide_input=True, err=True))
    return sys.stdin.readline(_LONGEST_KEY)


def _mention_variable(session: CommandSession) -> None:
    if session.env.get(KEY_VARIABLE):
        output.write_note(f"Note: {KEY_VARIABLE} is set and goes before the stored key.")
