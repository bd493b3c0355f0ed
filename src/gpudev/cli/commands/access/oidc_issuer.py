"""Requests to the OIDC issuer: discovery and tokens.

Only TLS (or the loopback address) is accepted, and no redirect is followed.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.sdk.api_address import is_loopback
from gpudev.sdk.errors import Unreachable
from gpudev.sdk.http.api_client import send_with_retries
from gpudev.sdk.http.routines import SyncDriver
from gpudev.sdk.http.transport import HttpRequest, HttpResponse, HttpTransport


class OidcClient(NamedTuple):
    """The OAuth client, the same for all users of this API."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    scopes: tuple[str, ...] = ("openid",)

    def form_fields(self) -> dict[str, str]:
        secret = {"client_secret": self.client_secret} if self.client_secret else {}
        return {"client_id": self.client_id, **secret}


class OidcEndpoints(NamedTuple):
    authorization: str
    token: str
    device: str | None


class OidcTokens(NamedTuple):
    id_token: str
    refresh_token: str | None


class LoginRejected(CliError):
    """The issuer rejected the login with an OAuth error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(ExitCode.AUTH, message, "Try again: `gpu-dev login`")
        self.oauth_code = code


def discover(issuer: str) -> OidcEndpoints:
    response = _send_request(f"{check_address(issuer, 'itself').rstrip('/')}/.well-known/openid-configuration", None)
    about = _object(response) if response.status == 200 else {}
    if about.get("issuer") != issuer:
        raise _not_an_issuer(issuer, "its discovery document names another issuer")
    return OidcEndpoints(
        authorization=check_address(about.get("authorization_endpoint"), "its login page"),
        token=check_address(about.get("token_endpoint"), "its tokens"),
        device=check_address(device, "its device login")
        if (device := about.get("device_authorization_endpoint"))
        else None,
    )


def ask_for_tokens(endpoint: str, client: OidcClient, fields: Mapping[str, str]) -> OidcTokens:
    """Raises LoginRejected with the issuer's error code."""
    reply = post(endpoint, {**client.form_fields(), **fields})
    id_token, refresh_token = reply.get("id_token"), reply.get("refresh_token")
    if not isinstance(id_token, str):
        raise _not_an_issuer(client.issuer, "it returned no ID token")
    return OidcTokens(id_token, refresh_token if isinstance(refresh_token, str) else None)


def post(endpoint: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Raises LoginRejected with the issuer's error code."""
    response = _send_request(endpoint, urlencode(fields).encode())
    reply = _object(response)
    if response.status == 200:
        return reply
    code = reply.get("error")
    if not isinstance(code, str):
        raise _not_an_issuer(endpoint, f"status {response.status}")
    why = reply.get("error_description")
    raise LoginRejected(code, f"the issuer rejected the login ({why if isinstance(why, str) and why else code})")


def check_address(address: object, what: str) -> str:
    if isinstance(address, str) and address.isascii() and address.isprintable() and " " not in address:
        try:
            parts = urlsplit(address)
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            host = ""
        if host and "@" not in parts.netloc and (parts.scheme == "https" or _is_local(parts.scheme, host)):
            return address
    raise CliError(ExitCode.UNREACHABLE, f"the issuer gives no secure address for {what}", "Ask the API's operator")


def _is_local(scheme: str, host: str) -> bool:
    return scheme == "http" and is_loopback(host)


def _send_request(address: str, form: bytes | None) -> HttpResponse:
    parts = urlsplit(address)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    step = "Check your network; the API's operator knows the issuer"
    transport = HttpTransport(f"{parts.scheme}://{parts.netloc}", when_unreachable=step, name="the login issuer")
    headers = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
    request = HttpRequest("GET" if form is None else "POST", target, form, headers, repeatable=form is None)
    return SyncDriver(transport).run(send_with_retries(request))


def _object(response: HttpResponse) -> dict[str, Any]:
    try:
        data = json.loads(response.body)
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {}


def _not_an_issuer(issuer: str, what: str) -> Unreachable:
    message = f"{issuer} does not respond like an OpenID Connect issuer ({what})"
    return Unreachable(message, sent=True, next_step="Ask the API's operator")
