"""Login methods: choosing one, and using it again when the key expires.

A way is a module with two functions: `log_in(session, method, options)` asks whatever it must; `log_in_again(session,
method, login)` asks nobody, and knows from the first time what is in `login`. Each answers a Credential, whose `login`
begins with `method`, or raises CliError. WAYS names them.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.domain.errors import RateLimited
from gpudev.sdk.api_address import ApiAddress
from gpudev.sdk.credentials import Credential
from gpudev.sdk.errors import ClientError, Forbidden, NotFound, Unauthenticated, Unreachable
from gpudev.sdk.http.access_endpoints import list_login_methods
from gpudev.sdk.http.endpoints import ApiCall, ApiReply
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
    """The API, as far as a login needs it."""

    def fetch(self, call: ApiCall[_T]) -> ApiReply[_T]: ...

    def revoke_key(self) -> None: ...


class LoginSession(Protocol):
    """The command's session, as far as a login needs it."""

    @property
    def address(self) -> ApiAddress: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    def anonymous_api(self) -> LoginApi: ...

    def api_with_key(self, key: str) -> LoginApi: ...


class LoginOptions(NamedTuple):
    """What the person said."""

    method: str | None = None
    profile: str | None = None
    """aws: of their AWS configuration."""
    by_device: bool | None = None
    """oidc: with a code on another device; None: whatever suits this machine."""


def log_in(session: LoginSession, options: LoginOptions) -> Credential:
    """By the way that was asked for, else by the first that the server offers and we know."""
    offered = _offered_methods(session)
    wanted = options.method or ("aws" if options.profile else "oidc" if options.by_device is not None else None)
    for method in offered:
        if method.kind in LOGIN_METHODS and wanted in (None, method.kind):
            credential: Credential = _load_method(method.kind).log_in(session, method, options)
            return credential
    if wanted is not None:
        kinds = ", ".join(method.kind for method in offered) or "none that is known"
        raise CliError(
            ExitCode.AUTH, f"{session.address.url} does not let people in by {wanted}", f"It offers: {kinds}"
        )
    raise CliError(
        ExitCode.AUTH,
        f"{session.address.url} hands out no keys to this machine",
        "Ask its operator for one (`gpu-dev-server users add NAME`) and store it with `gpu-dev login --key-stdin`",
    )


def log_in_again(session: LoginSession, stored: Credential) -> Credential:
    """Without a word to anybody. Raises Unreachable when it may work a little later."""
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
            f"your key for {session.address.url} has ended, and who is logged in to {stored.login['method']} now is "
            f"{credential.username}, not {stored.username}",
            "Run `gpu-dev login` to go on as somebody else",
        )
    return credential


def _log_in_again(session: LoginSession, stored: Credential) -> Credential:
    kind = stored.login.get("method", "")
    method = next((each for each in _offered_methods(session) if each.kind == kind), None)
    if kind not in LOGIN_METHODS or method is None:
        raise CliError(ExitCode.AUTH, f"your key for {session.address.url} has ended", "Run `gpu-dev login`")
    credential: Credential = _load_method(kind).log_in_again(session, method, stored.login)
    return credential


def credential_from(view: LoginView, login: Mapping[str, str]) -> Credential:
    ends = view.expires_at.isoformat() if view.expires_at else None
    return Credential(view.api_key, view.username, ends, login)


def _offered_methods(session: LoginSession) -> list[LoginMethod]:
    try:
        return session.anonymous_api().fetch(list_login_methods()).value.methods
    except (NotFound, Unauthenticated, Forbidden):
        return []  # a server of an earlier version, which knows only keys


def _load_method(kind: str) -> Any:
    return import_module(LOGIN_METHODS[kind])
