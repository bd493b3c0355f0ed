"""Login methods: choosing one, and using it again when the key expires.

A method is a module with two functions: `log_in(session, method, options)` may ask the user; `log_in_again(session,
method, login)` does not, and uses what the first login stored in `login`. Each returns a Credential whose `login` has
`method`, or raises CliError. LOGIN_METHODS lists the modules.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.domain.errors import RateLimited
from gpudev.sdk.api_address import ApiAddress
from gpudev.sdk.errors import ClientError, Forbidden, NotFound, Unauthenticated, Unreachable
from gpudev.sdk.http.access_endpoints import list_login_methods
from gpudev.sdk.http.endpoints import ApiCall, ApiReply
from gpudev.sdk.user_files import Credential
from gpudev.wire.access import LoginMethod, LoginView

_T = TypeVar("_T")
LOGIN_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "aws": "gpudev.cli.commands.access.aws_login",
        "oidc": "gpudev.cli.commands.access.oidc_login",
        "invitation": "gpudev.cli.commands.access.invitation_login",
    }
)


class LoginApi(Protocol):
    """The part of the API client that a login needs."""

    def fetch(self, call: ApiCall[_T]) -> ApiReply[_T]: ...

    def revoke_key(self) -> None: ...


class LoginSession(Protocol):
    """The part of the command's session that a login needs."""

    @property
    def address(self) -> ApiAddress: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    def anonymous_api(self) -> LoginApi: ...

    def api_with_key(self, key: str) -> LoginApi: ...


class LoginOptions(NamedTuple):
    """From the command line."""

    method: str | None = None
    profile: str | None = None
    """aws: profile of the AWS configuration."""
    by_device: bool | None = None
    """oidc: with a code on another device; None: decided by whether this machine has a browser."""


def log_in(session: LoginSession, options: LoginOptions) -> Credential:
    """With the requested method, or with the first one that the server offers and this client knows."""
    offered = _offered_methods(session)
    requested = options.method or ("aws" if options.profile else "oidc" if options.by_device is not None else None)
    for method in offered:
        if method.kind in LOGIN_METHODS and requested in (None, method.kind):
            credential: Credential = _load_method(method.kind).log_in(session, method, options)
            return credential
    if requested is not None:
        kinds = ", ".join(method.kind for method in offered) or "none that this client knows"
        raise CliError(
            ExitCode.AUTH, f"{session.address.url} does not offer the login method {requested}", f"It offers: {kinds}"
        )
    raise CliError(
        ExitCode.AUTH,
        f"{session.address.url} offers no login method",
        "Ask its operator for a key (`gpu-dev-server users add NAME`) and store it with `gpu-dev login --key-stdin`",
    )


def log_in_again(session: LoginSession, stored: Credential) -> Credential:
    """Without asking the user. Raises Unreachable if a later try may succeed."""
    try:
        credential = _log_in_again(session, stored)
    except ClientError as error:
        if error.code == RateLimited.code:
            raise Unreachable(error.message, sent=True, next_step=error.next_step) from error
        raise
    if stored.username and credential.username != stored.username:
        session.api_with_key(credential.api_key).revoke_key()
        raise CliError(
            ExitCode.AUTH,
            f"your key for {session.address.url} has expired, and the {stored.login['method']} login is now "
            f"{credential.username}, not {stored.username}",
            "Run `gpu-dev login` to continue as another user",
        )
    return credential


def _log_in_again(session: LoginSession, stored: Credential) -> Credential:
    kind = stored.login.get("method", "")
    method = next((each for each in _offered_methods(session) if each.kind == kind), None)
    if kind not in LOGIN_METHODS or method is None:
        raise CliError(ExitCode.AUTH, f"your key for {session.address.url} has expired", "Run `gpu-dev login`")
    credential: Credential = _load_method(kind).log_in_again(session, method, stored.login)
    return credential


def credential_from(view: LoginView, login: Mapping[str, str]) -> Credential:
    expires_at = view.expires_at.isoformat() if view.expires_at else None
    return Credential(view.api_key, view.username, expires_at, login)


def _offered_methods(session: LoginSession) -> list[LoginMethod]:
    try:
        return session.anonymous_api().fetch(list_login_methods()).value.methods
    except (NotFound, Unauthenticated, Forbidden):
        return []  # an earlier server version without login methods


def _load_method(kind: str) -> Any:
    return import_module(LOGIN_METHODS[kind])
