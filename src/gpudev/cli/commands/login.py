"""`gpu-dev login`."""

import json
import sys

import click

from gpudev import places
from gpudev.cli import output
from gpudev.cli.credentials import Credential, store
from gpudev.cli.exits import CliError, Exit
from gpudev.cli.session import KEY_VARIABLE, Session, check_key

_LONGEST_KEY = 4096


@click.command()
@click.option("--key-stdin", is_flag=True, help="Store a key you were given; it is read from standard input.")
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
@click.option("--json", "as_json", is_flag=True, help="Print who you are as JSON.")
def login(key_stdin: bool, api_url: str | None, as_json: bool) -> None:
    """Get an API key from the system on this machine, or store one you were given."""
    session = Session(api_url)
    if key_stdin:
        credential = _store_given_key(session)
    elif session.address.embedded:
        credential = session.log_in_as_owner()
    else:
        raise CliError(
            Exit.AUTH,
            f"{session.address.url} hands out no keys to this machine",
            "Ask its operator for one (`gpu-dev-server users add NAME`) and store it with `gpu-dev login --key-stdin`",
        )
    if as_json:
        about = {"api_url": session.address.url, "username": credential.username, "expires_at": credential.expires_at}
        output.say(json.dumps(about))
    else:
        output.say(f"Logged in to {session.address.url}{f' as {credential.username}' if credential.username else ''}.")
    if session.env.get(KEY_VARIABLE):
        output.tell(f"Note: {KEY_VARIABLE} is set and goes before the stored key.")


def _store_given_key(session: Session) -> Credential:
    """Only a key that works is kept."""
    key = check_key(_read_key(), "what was given")
    try:
        session.api_with(key).list_page({"limit": 1})
    except CliError as error:
        if error.exit_code is Exit.AUTH:
            raise CliError(
                Exit.AUTH, f"{session.address.url} does not take this key", "Ask its operator for another"
            ) from error
        raise
    credential = Credential(key)
    store(places.credentials_file(session.env), session.address.url, credential)
    return credential


def _read_key() -> str:
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        return str(click.prompt("API key", hide_input=True, err=True))
    return sys.stdin.readline(_LONGEST_KEY)
