"""Endpoints for logging in: login methods, nonces, AWS, OIDC and invitations."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import structlog
from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.responses import JsonResponse
from gpudev.api.http.routing import V1Route
from gpudev.api.request_guard import RequestGuard
from gpudev.domain.errors import Forbidden, Unauthenticated
from gpudev.ports.access import IdentityProvider, IdToken, NonceStore, Person, SignedRequest
from gpudev.ports.clock import Clock
from gpudev.settings import Settings
from gpudev.wire.access import (
    AwsLoginRequest,
    InvitationLoginRequest,
    LoginMethod,
    LoginMethods,
    LoginView,
    NonceView,
    OidcLoginRequest,
)
from gpudev.workflows.login import Login

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeyIssuer:
    login: Login

    async def issue_key(self, request: Request, person: Person) -> Response:
        """Raises Forbidden."""
        # The identity is proven even if the login is denied, so the audit log may name it.
        request.state.username = person.username
        guard: RequestGuard = request.app.state.guard
        try:
            done = await self.login.log_in(person, guard.client_address(request))
        except Forbidden as error:
            log.info("login.denied", provider=person.provider, username=person.username, reason=error.message)
            raise
        request.state.username = done.user.username
        log.info("login.done", provider=person.provider, username=done.user.username, role=done.user.role.value)
        view = LoginView(
            api_key=done.key.secret,
            expires_at=done.key.expires_at,
            username=done.user.username,
            role=done.user.role.value,
        )
        return JsonResponse(view, headers={"Cache-Control": "no-store"})


# Login methods, nonces, and login with AWS.


NONCE_TTL = timedelta(minutes=2)
_NO_STORE = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class LoginEndpoints:
    methods: Sequence[LoginMethod]
    aws: IdentityProvider[SignedRequest] | None
    nonces: NonceStore
    key_issuer: KeyIssuer
    clock: Clock

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/auth", tags=["login"], route_class=V1Route)
        add = router.add_api_route
        add(
            "/methods",
            self.list_methods,
            methods=["GET"],
            response_model=LoginMethods,
            summary="List login methods",
            responses=problem_responses(422),
        )
        add(
            "/nonce",
            self.give_nonce,
            methods=["POST"],
            response_model=NonceView,
            summary="Create a nonce for one login",
            responses=problem_responses(403, 422, 429, 503),
        )
        add(
            "/aws-login",
            self.log_in_with_aws,
            methods=["POST"],
            response_model=LoginView,
            summary="Log in with a signed AWS request",
            responses=problem_responses(400, 401, 403, 413, 415, 422, 429, 503),
        )
        return router

    async def list_methods(self) -> Response:
        return JsonResponse(LoginMethods(methods=list(self.methods)))

    async def give_nonce(self) -> Response:
        """A nonce to sign, valid for one login within two minutes."""
        if self.aws is None:
            raise _aws_login_disabled()
        nonce = await self.nonces.issue(NONCE_TTL, now=self.clock.now())
        return JsonResponse(NonceView(nonce=nonce.value, expires_at=nonce.expires_at), headers=_NO_STORE)

    async def log_in_with_aws(self, request: Request, signed: Annotated[AwsLoginRequest, Body()]) -> Response:
        """Forwards the signed GetCallerIdentity request to STS. If the response names a permitted role, returns a key
        for the role session's name. The request must be signed for this server with one of its nonces, and can be used
        once."""
        if self.aws is None:
            raise _aws_login_disabled()
        try:
            person = await self.aws.identify(SignedRequest(signed.method, signed.url, signed.headers, signed.body))
        except (Unauthenticated, Forbidden) as error:
            log.info("login.denied", provider="aws", reason=error.message)
            raise
        return await self.key_issuer.issue_key(request, person)


def _aws_login_disabled() -> Forbidden:
    return Forbidden("login with AWS is disabled on this server; `gpu-dev login` offers the enabled methods")


# Login with an OIDC ID token or an invitation.


_INVITATION_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_LOGIN_ERRORS = problem_responses(400, 401, 403, 413, 415, 422, 429, 503)


@dataclass(frozen=True, slots=True)
class TokenLoginEndpoints:
    oidc: IdentityProvider[IdToken] | None
    invitations: IdentityProvider[str] | None
    oidc_key_issuer: KeyIssuer
    invitation_key_issuer: KeyIssuer
    """Its keys last longer: there is no identity provider to log in with again."""

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/auth", tags=["login"], route_class=V1Route)
        router.add_api_route(
            "/oidc-login",
            self.log_in_with_oidc,
            methods=["POST"],
            response_model=LoginView,
            summary="Log in with an OIDC ID token",
            responses=_LOGIN_ERRORS,
        )
        router.add_api_route(
            "/invitation-login",
            self.accept_invitation,
            methods=["POST"],
            response_model=LoginView,
            summary="Log in with an invitation",
            responses=_LOGIN_ERRORS,
        )
        return router

    async def log_in_with_oidc(self, request: Request, body: Annotated[OidcLoginRequest, Body()]) -> Response:
        """Checks the token's issuer, audience, expiry and nonce, and that it has not been used; returns a key for its
        subject."""
        if self.oidc is None:
            raise Forbidden("login with OIDC is disabled on this server; `gpu-dev login` offers the enabled methods")
        person = await self.oidc.identify(IdToken(body.id_token, body.nonce))
        return await self.oidc_key_issuer.issue_key(request, person)

    async def accept_invitation(self, request: Request, body: Annotated[InvitationLoginRequest, Body()]) -> Response:
        """Returns a key for the invited username. An invitation can be used once."""
        if self.invitations is None:
            raise Forbidden("invitations are disabled on this server; `gpu-dev login` offers the enabled methods")
        # Checked first, so that a malformed secret costs no query.
        if not _INVITATION_SECRET.fullmatch(body.secret):
            raise Unauthenticated("invalid invitation")
        person = await self.invitations.identify(body.secret)
        return await self.invitation_key_issuer.issue_key(request, person)


def list_login_methods(settings: Settings) -> list[LoginMethod]:
    """In the order in which a client should prefer them."""
    methods = []
    if settings.aws_login.accounts:
        methods.append(
            LoginMethod(
                kind="aws",
                server_names=list(settings.server_names),
                roles=list(settings.aws_login.roles),
                regions=list(settings.aws_login.regions),
            )
        )
    if settings.oidc.issuer:
        methods.append(
            LoginMethod(
                kind="oidc",
                issuer=settings.oidc.issuer,
                client_id=settings.oidc.client_id,
                client_secret=settings.oidc.client_secret or None,
                scopes=list(settings.oidc.scopes),
            )
        )
    methods.append(LoginMethod(kind="invitation"))
    if settings.cluster == "local":
        methods.append(LoginMethod(kind="local"))
    return methods
