"""The endpoints for the API key that one holds: a new one for it, and its end."""

from dataclasses import dataclass
from datetime import timedelta

import structlog
from fastapi import APIRouter
from starlette.responses import Response

from gpudev.api.answering import JsonResponse
from gpudev.api.authentication import Authentication
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.routing import Caller, V1Route
from gpudev.ports.reservations import UserStore
from gpudev.wire.cluster import KeyView

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeyEndpoints:
    users: UserStore
    authentication: Authentication
    ttl: timedelta | None

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=V1Route)
        router.add_api_route(
            "/rotate",
            self.rotate,
            methods=["POST"],
            response_model=KeyView,
            summary="Replace this API key",
            responses=problem_responses(401, 503),
        )
        router.add_api_route(
            "/current",
            self.revoke,
            methods=["DELETE"],
            status_code=204,
            response_class=Response,
            summary="End this API key",
            responses=problem_responses(401, 503),
        )
        return router

    async def rotate(self, caller: Caller) -> Response:
        """Gives a new key, shown this once, and revokes the one this request was made with. A key without an end
        is replaced by a key without an end; one that came from a login, by one that ends when it would have ended."""
        ttl = None if caller.expires_at is None else self.ttl
        issued = await self.users.rotate_key(caller.key_id, ttl)
        self.authentication.forget_key(caller.key_id)
        log.info("key.rotated", username=caller.user.username, key_id=caller.key_id)
        view = KeyView(api_key=issued.secret, expires_at=issued.expires_at, username=caller.user.username)
        return JsonResponse(view, headers={"Cache-Control": "no-store"})

    async def revoke(self, caller: Caller) -> Response:
        """Logs out: the key this request was made with is none any more."""
        await self.users.revoke_key(caller.key_id)
        self.authentication.forget_key(caller.key_id)
        log.info("key.revoked", username=caller.user.username, key_id=caller.key_id)
        return Response(status_code=204)
