"""The endpoints for logging in with an OpenID Connect provider's token, and with an invitation."""

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.auth_door import KeyIssuer
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.routing import V1Route
from gpudev.domain.errors import Forbidden, Unauthenticated
from gpudev.ports.access import IdentityProvider
from gpudev.ports.invitations import IdToken
from gpudev.wire.access import LoginView
from gpudev.wire.auth_oidc import InvitationLoginRequest, OidcLoginRequest

_INVITATION_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_LOGIN_ERRORS = problem_responses(400, 401, 403, 413, 415, 422, 429, 503)


@dataclass(frozen=True, slots=True)
class TokenLoginEndpoints:
    oidc: IdentityProvider[IdToken] | None
    invitations: IdentityProvider[str] | None
    oidc_key_issuer: KeyIssuer
    invitation_key_issuer: KeyIssuer
    """Another one: there is no provider to ask again, so these keys last longer."""

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/auth", tags=["login"], route_class=V1Route)
        router.add_api_route(
            "/oidc-login",
            self.log_in_with_oidc,
            methods=["POST"],
            response_model=LoginView,
            summary="An API key for an ID token",
            responses=_LOGIN_ERRORS,
        )
        router.add_api_route(
            "/invitation-login",
            self.accept_invitation,
            methods=["POST"],
            response_model=LoginView,
            summary="An API key for an invitation",
            responses=_LOGIN_ERRORS,
        )
        return router

    async def log_in_with_oidc(self, request: Request, brought: Annotated[OidcLoginRequest, Body()]) -> Response:
        """Checks that the token is the configured issuer's, meant for gpu-dev, fresh and unused, and gives a key for
        the person it is about."""
        if self.oidc is None:
            raise Forbidden("nobody logs in with OIDC here; `gpu-dev login` finds out which ways there are")
        person = await self.oidc.identify(IdToken(brought.id_token, brought.nonce))
        return await self.oidc_key_issuer.issue_key(request, person)

    async def accept_invitation(self, request: Request, brought: Annotated[InvitationLoginRequest, Body()]) -> Response:
        """Gives a key for the name that was invited, once."""
        if self.invitations is None:
            raise Forbidden("nobody is invited here; `gpu-dev login` finds out which ways in there are")
        # The form is checked first, so that noise costs no query.
        if not _INVITATION_SECRET.fullmatch(brought.secret):
            raise Unauthenticated("this is no invitation's secret")
        person = await self.invitations.identify(brought.secret)
        return await self.invitation_key_issuer.issue_key(request, person)
