"""`gpu-dev login` and `gpu-dev logout`."""

import json
import sys
from datetime import datetime

import click

from gpudev import paths
from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.sdk import user_files
from gpudev.sdk.errors import Forbidden, Unauthenticated
from gpudev.sdk.http.endpoints import list_jobs
from gpudev.sdk.user_files import KEY_VARIABLE, Credential, check_key

_LONGEST_KEY = 4096


@click.command()
@click.argument("link", required=False)
@click.option("--profile", metavar="NAME", help="AWS profile to log in with.")
@click.option("--method", type=click.Choice(["aws", "oidc"]), help="Login method, if the server offers several.")
@click.option(
    "--device/--browser",
    "by_device",
    default=None,
    help="OIDC: log in with a code on another device, or in a local browser.",
)
@click.option("--key-stdin", is_flag=True, help="Store an existing key, read from standard input.")
@click.option("--rotate", is_flag=True, help="Replace the stored key; the old one is revoked at once.")
@click.option("--again", is_flag=True, help="Repeat the last login, without questions.")
@click.option("--api-url", metavar="URL", help="API address; overrides all settings.")
@click.option("--json", "as_json", is_flag=True, help="Print the login as JSON.")
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
    """Log in with a method that the server offers, or with an invitation LINK, and store the API key.

    An invitation also sets the API address and its certificate. `-` reads the link from standard input.

    AWS login uses the credentials of your AWS configuration; only a signed request leaves this machine, never the
    secret key. When the key expires, commands renew it automatically.
    """
    has_method = bool(profile or method or by_device is not None)
    if sum((key_stdin, rotate, again, has_method, link is not None)) > 1:
        raise usage_error(
            "LINK, --key-stdin, --rotate, --again and the options of login methods are mutually exclusive"
        )
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
    elif session.address.embedded and not has_method:
        credential = session.log_in_as_owner()
    elif again:
        raise CliError(ExitCode.AUTH, f"no earlier login to {session.address.url} to repeat", "Run `gpu-dev login`")
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
@click.option("--api-url", metavar="URL", help="API address; overrides all settings.")
def logout(api_url: str | None) -> None:
    """Revoke the stored API key and delete it."""
    session = CommandSession(api_url)
    stored = session.find_stored_credential()
    if stored is None:
        output.write_line(f"No stored key for {session.address.url}.")
        _mention_variable(session)
        return
    try:
        session.api_with_key(stored.api_key).revoke_key()
    finally:
        # Delete the key even if the server could not revoke it.
        user_files.remove_credential(paths.credentials_file(session.env), session.address.url)
    output.write_line(f"Logged out of {session.address.url}.")
    _mention_variable(session)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("--api-url", metavar="URL", help="API address; overrides all settings.")
def whoami(as_json: bool, api_url: str | None) -> None:
    """Show who you are logged in as, and where."""
    session = CommandSession(api_url)
    jobs = session.api.fetch(list_jobs({"limit": 1})).value.jobs  # checks the key, and renews it if necessary
    stored = None if session.env.get(KEY_VARIABLE) else session.find_stored_credential()
    username = (stored.username if stored else None) or (jobs[0].user if jobs else None)
    expires_at = stored.expires_at if stored else None
    if as_json:
        about = {"api_url": session.address.url, "username": username, "expires_at": expires_at}
        output.write_line(json.dumps(about))
        return
    key = f"key from {KEY_VARIABLE}" if stored is None else f"key until {_local_expiry(expires_at)}"
    output.write_line(output.clean(f"{username or 'unknown user'} at {session.address.url} ({key})"))


@click.command()
@click.option("--api-url", metavar="URL", help="API address; overrides all settings.")
def token(api_url: str | None) -> None:
    """Print your API key, for other programs. Keep it secret.

    \b
    curl -H "Authorization: Bearer $(gpu-dev token)" http://127.0.0.1:8080/v1/jobs
    """
    session = CommandSession(api_url)
    session.api.fetch(list_jobs({"limit": 1}))  # checks the key, and renews it if necessary
    variable, stored = session.env.get(KEY_VARIABLE), session.find_stored_credential()
    output.write_line(check_key(variable or (stored.api_key if stored else ""), "the key"))


def _local_expiry(expires_at: str | None) -> str:
    if expires_at is None:
        return "revoked"
    return formatting.local_time(datetime.fromisoformat(expires_at), formatting.utc_now())


def _rotate(session: CommandSession) -> Credential:
    from gpudev.sdk.http.access_endpoints import rotate_key

    stored = session.find_stored_credential()
    if stored is None:
        raise CliError(ExitCode.AUTH, f"no stored key for {session.address.url}", "Run `gpu-dev login`")
    view = session.api_with_key(stored.api_key).fetch(rotate_key()).value
    expires_at = view.expires_at.isoformat() if view.expires_at else None
    return session.store_credential(
        stored._replace(api_key=view.api_key, username=view.username, expires_at=expires_at)
    )


def _store_given_key(session: CommandSession) -> Credential:
    """Check the key before storing it."""
    key = check_key(_read_key(), "the input")
    try:
        session.api_with_key(key).fetch(list_jobs({"limit": 1}))
    except (Unauthenticated, Forbidden) as error:
        raise CliError(
            ExitCode.AUTH, f"{session.address.url} does not accept this key", "Ask its operator for another"
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
        output.write_note(f"Note: {KEY_VARIABLE} is set and overrides the stored key.")
