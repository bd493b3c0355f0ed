"""The endpoints of the way through HTTPS, as far as they are plain requests: a token, and a word to whoever comes
without a WebSocket. The sessions themselves are `gpudev.proxy`'s."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gpudev.api.answering import JsonResponse
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import JobId
from gpudev.api.http.routing import Caller, V1Route
from gpudev.ports.reservations import ReservationStore
from gpudev.wire.proxy import ProxyToken
from gpudev.workflows.reservation_views import find_job
from gpudev.workflows.sessions.ssh_tokens import SshTokens


@dataclass(frozen=True, slots=True)
class SshTokenEndpoints:
    reservations: ReservationStore
    ssh_tokens: SshTokens
    url: str
    """Where the proxy is, if it is not where the API is."""

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/jobs", tags=["connecting"], route_class=V1Route)
        router.add_api_route(
            "/{job_id}/proxy-token",
            self.token,
            methods=["POST"],
            response_model=ProxyToken,
            summary="A token for ssh through HTTPS",
            responses=problem_responses(401, 404, 409, 422, 503),
        )
        router.add_api_route(
            "/{job_id}/ssh",
            self.without_upgrade,
            status_code=426,
            response_class=Response,
            summary="ssh through HTTPS (a WebSocket)",
            responses=problem_responses(401, 403, 404, 409, 422, 426, 429, 503),
        )
        return router

    async def token(self, job_id: JobId, caller: Caller) -> Response:
        """Short-lived, for this one active reservation. Sessions it opened end when the reservation ends, when the
        user is disabled, or when the API key that asked for it is revoked."""
        issued = await self.ssh_tokens.issue_token(caller, job_id)
        view = ProxyToken(
            token=issued.secret,
            reservation_id=str(issued.reservation_id),
            expires_at=issued.ends_at,
            url=self.url or None,
        )
        return JsonResponse(view, headers={"Cache-Control": "no-store"})

    async def without_upgrade(self, job_id: JobId, caller: Caller) -> Response:
        """Open it as a WebSocket, with a token of `POST /v1/jobs/{job_id}/proxy-token` as bearer: binary messages carry
        the bytes of one ssh connection, an empty one says that no more come. `gpu-dev connect` does all of that."""
        await find_job(self.reservations, caller.user, job_id)
        raise HTTPException(426, "this is a WebSocket: `gpu-dev connect` opens it", {"Upgrade": "websocket"})
