"""Endpoints about the cluster: availability, status, plan, nodes and estimate statistics.

All users get the same availability and status, so these are cached for a moment.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import APIRouter, Path
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.caching import CachedValue
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import Days, GpuTypeFilter, Hours
from gpudev.api.http.responses import JsonResponse
from gpudev.api.http.routing import Caller, V1Route
from gpudev.domain.cluster import check_cordon_reason
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import CordonStore
from gpudev.wire.cluster import AvailabilityList, ClusterStatus, CordonRequest, CordonView
from gpudev.wire.queue import ClusterPlan, EtaReportView
from gpudev.workflows.cluster.cluster_views import ClusterPlanViews, ClusterStatusViews
from gpudev.workflows.cluster.eta_report import EtaReports
from gpudev.workflows.reservation_views import sees_everything

_CACHE_SECONDS = 0.2
_CACHE_COST_FACTOR = 50
"""At most 1/50 of the time is spent computing them, whatever the cluster's size."""


class ClusterEndpoints:
    def __init__(
        self,
        cluster_status: ClusterStatusViews,
        cluster_plan: ClusterPlanViews,
        is_planning: Callable[[], Awaitable[bool]],
    ) -> None:
        self._cluster_status = cluster_status
        self._cluster_plan = cluster_plan
        self._is_planning = is_planning
        self._availability = CachedValue(cluster_status.availability, _CACHE_SECONDS, cost_factor=_CACHE_COST_FACTOR)
        self._status = CachedValue(self._load_status, _CACHE_SECONDS, cost_factor=_CACHE_COST_FACTOR)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", tags=["cluster"], route_class=V1Route)
        router.add_api_route(
            "/gpu/availability",
            self.availability,
            response_model=AvailabilityList,
            summary="Availability of each GPU type",
            responses=problem_responses(401, 503),
        )
        router.add_api_route(
            "/cluster/status",
            self.status,
            response_model=ClusterStatus,
            summary="Cluster status: nodes and reservations",
            responses=problem_responses(401, 503),
        )
        router.add_api_route(
            "/cluster/plan",
            self.plan,
            response_model=ClusterPlan,
            summary="Plan for the coming hours",
            responses=problem_responses(401, 422, 503),
        )
        return router

    async def availability(self, _caller: Caller) -> Response:
        """Per type: free GPUs, the most that one reservation could start with now, queued requests, and the expected
        wait for one GPU (or CPU slot) requested now."""
        return JsonResponse(await self._availability.get_value())

    async def status(self, _caller: Caller) -> Response:
        """The nodes as last observed (CPU nodes count user slots), and whether a processor is alive."""
        return JsonResponse(await self._status.get_value())

    async def plan(self, caller: Caller, hours: Hours = 12.0, gpu_type: GpuTypeFilter = None) -> Response:
        """GPUs in use over time for every node; planned start and nodes of every queued request."""
        return JsonResponse(await self._cluster_plan.view_plan(caller.user, hours, gpu_type))

    async def _load_status(self) -> ClusterStatus:
        return await self._cluster_status.cluster_status(is_planning=await self._is_planning())


# Cordoning of nodes.


log = structlog.get_logger()


def _check_node_name(text: str) -> str:
    if not 1 <= len(text) <= 253 or not text.isprintable():
        raise ValueError("must be a node name")
    return text


NodeName = Annotated[
    Annotated[str, AfterValidator(_check_node_name)],
    Path(
        description="A node name",
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
            summary="Cordon a node",
            responses=problem_responses(400, 401, 403, 404, 413, 415, 422, 429, 503),
        )
        router.add_api_route(
            "/{name}/uncordon",
            self.uncordon,
            methods=["POST"],
            response_model=CordonView,
            summary="Uncordon a node",
            responses=problem_responses(401, 403, 404, 422, 429, 503),
        )
        return router

    async def cordon(self, name: NodeName, body: CordonRequest, caller: Caller, request: Request) -> Response:
        """Running reservations continue. Nothing new is started or planned there. All users can see the reason."""
        reason = check_cordon_reason(body.reason)
        request.state.audit_target = f"{name} ({reason})" if reason else name
        cordon = await self.cordons.cordon(name, caller.user.username, reason, now=self.clock.now())
        log.info("node.cordoned", node=name, by=caller.user.username, reason=reason)
        return JsonResponse(CordonView(name=name, cordoned=True, by=cordon.by, reason=cordon.reason, at=cordon.at))

    async def uncordon(self, name: NodeName, caller: Caller) -> Response:
        """Removes the cordon set through gpu-dev; a node cordoned in Kubernetes itself stays cordoned."""
        await self.cordons.uncordon(name)
        log.info("node.uncordoned", node=name, by=caller.user.username)
        return JsonResponse(CordonView(name=name, cordoned=False, by=None, reason=None, at=None))


# Estimate statistics.


@dataclass(frozen=True, slots=True)
class EtaStatisticsEndpoints:
    eta_statistics: EtaReports

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/stats", tags=["stats"], route_class=V1Route)
        router.add_api_route(
            "/eta",
            self.eta,
            response_model=EtaReportView,
            summary="Estimate statistics",
            responses=problem_responses(401, 422, 503),
        )
        return router

    async def eta(self, caller: Caller, days: Days = 7.0, gpu_type: GpuTypeFilter = None) -> Response:
        """First estimates compared with actual starts: the errors of `expected` and `latest`, how often the interval
        held, and how often `latest` was broken, by cause."""
        report = await self.eta_statistics.report_eta(days, gpu_type, name_breaches=sees_everything(caller.user))
        return JsonResponse(report)
