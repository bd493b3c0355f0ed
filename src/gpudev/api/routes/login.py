"""The endpoints for logging in: which ways there are, a nonce for one login, and the login with AWS.

They are open; what keeps strangers out is that they prove nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import structlog
from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.answering import JsonResponse
from gpudev.api.auth_door import KeyIssuer
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.routing import V1Route
from gpudev.domain.errors import Forbidden, Unauthenticated
from gpudev.ports.access import IdentityProvider, NonceStore, SignedRequest
from gpudev.ports.clock import Clock
from gpudev.wire.access import AwsLoginRequest, LoginMethod, LoginMethods, LoginView, NonceView

NONCE_TTL = timedelta(minutes=2)
_NO_STORE = {"Cache-Control": "no-store"}
log = structlog.get_logger()


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
            summary="How one may log in here",
            responses=problem_responses(422),
        )
        add(
            "/nonce",
            self.give_nonce,
            methods=["POST"],
            response_model=NonceView,
            summary="Begin a login",
            responses=problem_responses(403, 422, 429, 503),
        )
        add(
            "/aws-login",
            self.log_in_with_aws,
            methods=["POST"],
            response_model=LoginView,
            summary="An API key for a signed request to AWS",
            responses=problem_responses(400, 401, 403, 413, 415, 422, 429, 503),
        )
        return router

    async def list_methods(self) -> Response:
        return JsonResponse(LoginMethods(methods=list(self.methods)))

    async def give_nonce(self) -> Response:
        """A nonce to sign, good for one login within two minutes."""
        if self.aws is None:
            raise _aws_login_disabled()
        nonce = await self.nonces.issue(NONCE_TTL, now=self.clock.now())
        return JsonResponse(NonceView(nonce=nonce.value, expires_at=nonce.expires_at), headers=_NO_STORE)

    async def log_in_with_aws(self, request: Request, signed: Annotated[AwsLoginRequest, Body()]) -> Response:
        """Forwards the signed GetCallerIdentity request to STS and, if the answer names a role that may come in, gives
        a key for the role session's name. The request must be made for this server and one of its nonces, and is
        good once."""
        if self.aws is None:
            raise _aws_login_disabled()
        try:
            person = await self.aws.identify(SignedRequest(signed.method, signed.url, signed.headers, signed.body))
        except (Unauthenticated, Forbidden) as refusal:
            log.info("login.refused", provider="aws", reason=refusal.message)
            raise
        return await self.key_issuer.issue_key(request, person)


def _aws_login_disabled() -> Forbidden:
    return Forbidden("nobody logs in with AWS here; `gpu-dev login` finds out which ways there are")
