"""Login with an invitation link, which contains the API's address and its certificate pin."""

import sys
from collections.abc import Mapping

import click

from gpudev import paths
from gpudev.cli.command_session import CommandSession
from gpudev.cli.config import store_preference
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.cli.login_methods import LoginApi, LoginOptions, LoginSession, credential_from
from gpudev.domain.access.invitations import InvitationLink, parse_invitation_link
from gpudev.domain.errors import Invalid
from gpudev.sdk.api_address import region_of
from gpudev.sdk.http import access_endpoints
from gpudev.sdk.http.certificate_pins import store_pin
from gpudev.sdk.user_files import API_URL, Credential
from gpudev.wire.access import InvitationLoginRequest, LoginMethod

METHOD = "invitation"
_LONGEST_LINK = 4096


def accept_invitation(text: str, api_url: str | None) -> tuple[CommandSession, Credential]:
    """Log in, and store the key, the API address and the pin. `-` reads the link from standard input."""
    try:
        link = parse_invitation_link(_read_link() if text == "-" else text)
    except Invalid as error:
        raise usage_error(error.message) from error
    session = CommandSession(link.api_url, pin=link.fingerprint)
    if api_url is not None and CommandSession(api_url).address.url != session.address.url:
        raise usage_error(f"--api-url does not match the invitation, which is for {link.api_url}")
    credential = session.store_credential(_exchange(session.anonymous_api(), link))
    store_pin(session.env, session.address.url, link.fingerprint)
    if not session.address.embedded:
        where = paths.config_file(session.env)
        store_preference(where, API_URL, session.address.url, region_of(session.env))
    return session, credential


def log_in(session: LoginSession, method: LoginMethod, options: LoginOptions) -> Credential:
    raise CliError(
        ExitCode.AUTH,
        f"{session.address.url} accepts invited users only",
        "Ask its operator for a link (`gpu-dev-server users invite NAME`) and run `gpu-dev login LINK`; "
        "store an existing key with `gpu-dev login --key-stdin`",
    )


def log_in_again(session: LoginSession, method: LoginMethod, login: Mapping[str, str]) -> Credential:
    raise CliError(
        ExitCode.AUTH,
        f"your key for {session.address.url} has expired, and an invitation works only once",
        "Ask the operator for another link and run `gpu-dev login LINK`",
    )


def _exchange(api: LoginApi, link: InvitationLink) -> Credential:
    call = access_endpoints.log_in_with_invitation(InvitationLoginRequest(secret=link.secret))
    return credential_from(api.fetch(call).value, {"method": METHOD})


def _read_link() -> str:
    """Not from the command line, which other users of this machine can see."""
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        return str(click.prompt("Invitation", hide_input=True, err=True))
    return sys.stdin.readline(_LONGEST_LINK).strip()
