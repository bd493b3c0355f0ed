"""OIDC login: exchanges the issuer's tokens for an API key, interactively first, then by refresh token.

The refresh token is stored next to the key in the private credentials file. It is sent only to the issuer that it came
from, even if the API names another issuer later.
"""

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

from gpudev import paths
from gpudev.cli.commands.access import oidc_browser, oidc_device
from gpudev.cli.commands.access.oidc_issuer import LoginRejected, OidcClient, OidcTokens, ask_for_tokens, discover
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.cli.login_methods import LoginOptions, LoginSession, credential_from
from gpudev.domain.access.login import server_name
from gpudev.sdk import user_files
from gpudev.sdk.http import access_endpoints
from gpudev.sdk.user_files import Credential
from gpudev.wire.access import LoginMethod, LoginView, OidcLoginRequest

METHOD = "oidc"


def log_in(session: LoginSession, method: LoginMethod, options: LoginOptions) -> Credential:
    if not method.issuer or not method.client_id:
        raise CliError(ExitCode.UNREACHABLE, f"{session.address.url} names no OIDC issuer", "Ask its operator")
    client = OidcClient(method.issuer, method.client_id, method.client_secret, tuple(method.scopes or ("openid",)))
    endpoints = discover(client.issuer)
    by_device = options.by_device if options.by_device is not None else has_no_browser(session.env)
    if by_device:
        tokens, nonce = oidc_device.log_in(client, endpoints), None
    else:
        tokens, nonce = oidc_browser.log_in(client, endpoints, server_name(session.address.url))
        check_nonce(tokens.id_token, nonce)
    return credential_from(_exchange_tokens(session, tokens, nonce), _login_record(client, tokens))


def log_in_again(session: LoginSession, method: LoginMethod, login: Mapping[str, str]) -> Credential:
    """With the stored refresh token."""
    path, api_url = paths.credentials_file(session.env), session.address.url
    # Some issuers accept each refresh token once, so the next process must find its successor.
    with user_files.file_lock(path):
        stored = user_files.find_credential(path, api_url)
        login = stored.login if stored is not None else login
        client, tokens = _refresh(api_url, login)
        login = _login_record(client, tokens._replace(refresh_token=tokens.refresh_token or login.get("refresh_token")))
        if stored is not None:
            user_files.store_credential_locked(path, api_url, stored._replace(login=login))
    return credential_from(_exchange_tokens(session, tokens, None), login)


def _refresh(api_url: str, login: Mapping[str, str]) -> tuple[OidcClient, OidcTokens]:
    match dict(login):
        case {"issuer": str(issuer), "client_id": str(client_id), "refresh_token": str(refresh_token)}:
            client = OidcClient(issuer, client_id, login.get("client_secret"))
        case _:
            raise _key_expired(api_url)
    fields = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    try:
        return client, ask_for_tokens(discover(issuer).token, client, fields)
    except LoginRejected as rejected:
        if rejected.oauth_code == "invalid_grant":
            raise _key_expired(api_url) from rejected
        raise


def has_no_browser(env: Mapping[str, str]) -> bool:
    """An ssh session has its browser on another machine; without a display there is none."""
    if env.get("BROWSER"):
        return False
    if env.get("SSH_CONNECTION") or env.get("SSH_TTY"):
        return True
    return sys.platform.startswith("linux") and not (env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"))


def check_nonce(id_token: str, nonce: str) -> None:
    """Check that the token belongs to this login. The API checks everything else."""
    if _claims(id_token).get("nonce") != nonce:
        raise CliError(ExitCode.AUTH, "the issuer's token belongs to another login", "Try again")


def _claims(id_token: str) -> dict[str, Any]:
    try:
        payload = id_token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _login_record(client: OidcClient, tokens: OidcTokens) -> dict[str, str]:
    login = {"method": METHOD}
    if tokens.refresh_token is not None:
        login |= {"issuer": client.issuer, "refresh_token": tokens.refresh_token, **client.form_fields()}
    return login


def _exchange_tokens(session: LoginSession, tokens: OidcTokens, nonce: str | None) -> LoginView:
    request = OidcLoginRequest(id_token=tokens.id_token, nonce=nonce)
    return session.anonymous_api().fetch(access_endpoints.log_in_with_oidc(request)).value


def _key_expired(api_url: str) -> CliError:
    return CliError(ExitCode.AUTH, f"your key for {api_url} has expired", "Run `gpu-dev login`")
