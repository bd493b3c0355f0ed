"""The endpoints with which operators close nodes for new work and open them again."""

from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import APIRouter, Path
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.answering import JsonResponse
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.routing import Caller, V1Route
from gpudev.domain.cordon import check_cordon_reason
from gpudev.ports.clock import Clock
from gpudev.ports.cordons import CordonStore
from gpudev.wire.cluster import CordonRequest, CordonView

log = structlog.get_logger()


def _check_node_name(text: str) -> str:
    if not 1 <= len(text) <= 253 or not text.isprintable():
        raise ValueError("must be a node's name")
    return text


NodeName = Annotated[
    Annotated[str, AfterValidator(_check_node_name)],
    Path(
        description="A node's name",
        examples=["node-1"],
        json_schema_extra={"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$"},
    ),
]


@dataclass(frozen=True, slots=True)
class NodeEndpoints:
    cordons: CordonStore
    clock: Clock

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/cluster/nodes", tags=["cluster"], route_class=V1Route)
        router.add_api_route(
            "/{name}/cordon",
            self.cordon,
            methods=["POST"],
            response_model=CordonView,
            summary="Close a node for new work",
            responses=problem_responses(400, 401, 403, 404, 413, 415, 422, 429, 503),
        )
        router.add_api_route(
            "/{name}/uncordon",
            self.uncordon,
            methods=["POST"],
            response_model=CordonView,
            summary="Open a node again",
            responses=problem_responses(401, 403, 404, 422, 429, 503),
        )
        return router

    async def cordon(self, name: NodeName, ask: CordonRequest, caller: Caller, request: Request) -> Response:
        """What runs there goes on. Nothing new is started or promised there, and everybody can read the reason."""
        reason = check_cordon_reason(ask.reason)
        request.state.audit_target = f"{name} ({reason})" if reason else name
        made = await self.cordons.cordon(name, caller.user.username, reason, now=self.clock.now())
        log.info("node.cordoned", node=name, by=caller.user.username, reason=reason)
        return JsonResponse(CordonView(name=name, cordoned=True, by=made.by, reason=made.reason, at=made.at))

    async def uncordon(self, name: NodeName, caller: Caller) -> Response:
        """Takes back what operators did here; a node that is closed in the cluster itself stays so."""
        await self.cordons.uncordon(name)
        log.info("node.uncordoned", node=name, by=caller.user.username)
        return JsonResponse(CordonView(name=name, cordoned=False, by=None, reason=None, at=None))
