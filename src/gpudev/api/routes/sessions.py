"""Endpoints for sessions and addons: ssh tokens, collaborators and Jupyter."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import JobId
from gpudev.api.http.responses import JsonResponse
from gpudev.api.http.routing import Caller, V1Route
from gpudev.domain.reservations.reservation import Reservation
from gpudev.domain.sessions.addons import Addons, jupyter_path
from gpudev.ports.reservations import ReservationStore
from gpudev.wire.sessions import AddUsersRequest, DevServerUser, DevServerUsers, JupyterLink, JupyterView, ProxyToken
from gpudev.workflows.reservation_views import find_job
from gpudev.workflows.sessions.addons import AddonChanges
from gpudev.workflows.sessions.jupyter_access import JupyterLinks
from gpudev.workflows.sessions.ssh_tokens import SshTokens

GitHubUser = Annotated[
    str,
    Path(
        description="A GitHub username, as it was added",
        examples=["octocat"],
        # As with ids: only documented here.
        json_schema_extra={"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,38}$"},
    ),
]


@dataclass(frozen=True, slots=True)
class CollaboratorEndpoints:
    addons: AddonChanges

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/jobs", tags=["inside"], route_class=V1Route)
        router.add_api_route(
            "/{job_id}/users",
            self.list_users,
            response_model=DevServerUsers,
            summary="List collaborators",
            responses=problem_responses(401, 404, 409, 422, 429, 503),
        )
        router.add_api_route(
            "/{job_id}/users",
            self.add,
            methods=["POST"],
            status_code=202,
            response_model=DevServerUsers,
            summary="Add collaborators",
            responses=problem_responses(400, 401, 404, 409, 413, 415, 422, 429, 503),
        )
        router.add_api_route(
            "/{job_id}/users/{github_user}",
            self.remove,
            methods=["DELETE"],
            status_code=202,
            response_model=DevServerUsers,
            summary="Remove a collaborator",
            responses=problem_responses(401, 404, 409, 422, 429, 503),
        )
        return router

    async def list_users(self, job_id: JobId, caller: Caller) -> Response:
        """Without the owner, whose public keys are part of the submit."""
        return JsonResponse(_collaborators_view(*await self.addons.find_addons(caller.user, job_id)))

    async def add(self, job_id: JobId, body: AddUsersRequest, caller: Caller, request: Request) -> Response:
        """Fetches their public keys from GitHub; if one of them has none, no one is added. Takes effect within seconds
        in a running dev server (`in_effect`), otherwise at its start."""
        request.state.audit_target = f"{job_id} ({', '.join(body.github_users)})"
        await self.addons.add_users(caller.user, job_id, body.github_users)
        return JsonResponse(_collaborators_view(*await self.addons.find_addons(caller.user, job_id)), 202)

    async def remove(self, job_id: JobId, github_user: GitHubUser, caller: Caller) -> Response:
        """Takes effect within seconds and closes their open connections."""
        await self.addons.remove_user(caller.user, job_id, github_user)
        return JsonResponse(_collaborators_view(*await self.addons.find_addons(caller.user, job_id)), 202)


def _collaborators_view(reservation: Reservation, addons: Addons | None) -> DevServerUsers:
    users = () if addons is None or reservation.status.is_terminal else addons.collaborators
    return DevServerUsers(
        reservation_id=str(reservation.reservation_id),
        users=[
            DevServerUser(
                github_user=user.github_user,
                keys=len(user.ssh_public_keys),
                added_by=user.added_by,
                added_at=user.added_at,
            )
            for user in users
        ],
        in_effect=addons is None or addons.is_applied,
        trouble=None if addons is None else addons.error,
    )


@dataclass(frozen=True, slots=True)
class JupyterEndpoints:
    addons: AddonChanges
    links: JupyterLinks
    url: str
    """The address of Jupyter for browsers, if it is not the API's."""

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/jobs", tags=["inside"], route_class=V1Route)
        errors = problem_responses(401, 404, 409, 422, 429, 503)
        router.add_api_route(
            "/{job_id}/jupyter", self.get, response_model=JupyterView, summary="Jupyter status", responses=errors
        )
        for name, endpoint, summary in (
            ("enable", self.enable, "Enable Jupyter"),
            ("disable", self.disable, "Disable Jupyter"),
        ):
            router.add_api_route(
                f"/{{job_id}}/jupyter/{name}",
                endpoint,
                methods=["POST"],
                status_code=202,
                response_model=JupyterView,
                summary=summary,
                responses=errors,
            )
        router.add_api_route(
            "/{job_id}/jupyter/link",
            self.link,
            methods=["POST"],
            response_model=JupyterLink,
            summary="Create a one-time link to Jupyter",
            responses=errors,
        )
        return router

    async def get(self, job_id: JobId, caller: Caller) -> Response:
        """`off` until it is enabled."""
        return JsonResponse(jupyter_view(*await self.addons.find_addons(caller.user, job_id)))

    async def enable(self, job_id: JobId, caller: Caller) -> Response:
        """Starts Jupyter in the running dev server without a restart, or with the dev server's start. Idempotent; a
        failed Jupyter is started again."""
        await self.addons.enable_jupyter(caller.user, job_id)
        return JsonResponse(jupyter_view(*await self.addons.find_addons(caller.user, job_id)), 202)

    async def disable(self, job_id: JobId, caller: Caller) -> Response:
        """Ends its kernels. Idempotent."""
        await self.addons.disable_jupyter(caller.user, job_id)
        return JsonResponse(jupyter_view(*await self.addons.find_addons(caller.user, job_id)), 202)

    async def link(self, job_id: JobId, caller: Caller) -> Response:
        """For the owner only. The browser that opens it gets a cookie for this Jupyter only. The cookie becomes invalid
        with the end of the reservation, when the user is disabled, or when the API key that created the link is
        revoked."""
        issued = await self.links.issue_link(caller, job_id)
        path = f"{jupyter_path(issued.reservation_id)}enter?ticket={issued.secret}"
        return JsonResponse(
            JupyterLink(url=f"{self.url.rstrip('/')}{path}", expires_at=issued.ends_at),
            headers={"Cache-Control": "no-store"},
        )


def jupyter_view(reservation: Reservation, addons: Addons | None) -> JupyterView:
    jupyter = None if addons is None or reservation.status.is_terminal else addons.jupyter
    return JupyterView(
        reservation_id=str(reservation.reservation_id),
        state="off" if jupyter is None else jupyter.status.state.value,
        reason=None if jupyter is None else jupyter.status.reason,
        trouble=None if addons is None or reservation.status.is_terminal else addons.error,
    )


# SSH tokens, and the error for clients that do not open a WebSocket. `gpudev.proxy` serves the sessions.


@dataclass(frozen=True, slots=True)
class SshTokenEndpoints:
    reservations: ReservationStore
    ssh_tokens: SshTokens
    url: str
    """The proxy's address, if it is not the API's."""

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/jobs", tags=["connecting"], route_class=V1Route)
        router.add_api_route(
            "/{job_id}/proxy-token",
            self.token,
            methods=["POST"],
            response_model=ProxyToken,
            summary="Create a token for ssh through HTTPS",
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
        """Short-lived, for one active reservation. Its sessions end with the reservation, when the user is disabled, or
        when the API key that created the token is revoked."""
        issued = await self.ssh_tokens.issue_token(caller, job_id)
        view = ProxyToken(
            token=issued.secret,
            reservation_id=str(issued.reservation_id),
            expires_at=issued.ends_at,
            url=self.url or None,
        )
        return JsonResponse(view, headers={"Cache-Control": "no-store"})

    async def without_upgrade(self, job_id: JobId, caller: Caller) -> Response:
        """A WebSocket, with a token from `POST /v1/jobs/{job_id}/proxy-token` as bearer. Binary messages carry the
        bytes of one ssh connection; an empty message marks their end. `gpu-dev connect` uses it."""
        await find_job(self.reservations, caller.user, job_id)
        raise HTTPException(426, "this endpoint is a WebSocket; `gpu-dev connect` opens it", {"Upgrade": "websocket"})
