"""The endpoints about the cluster as a whole. Many ask, all get the same: answers are shared for a moment."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.responses import Response

from gpudev.api.answering import JsonResponse
from gpudev.api.caching import CachedValue
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import GpuTypeFilter, Hours
from gpudev.api.http.routing import Caller, V1Route
from gpudev.wire.cluster import AvailabilityList, ClusterPlan, ClusterStatus
from gpudev.workflows.cluster.cluster_views import ClusterStatusViews
from gpudev.workflows.foreseeing import ClusterPlanViews

_CACHE_SECONDS = 0.2
_CACHE_COST_FACTOR = 50
"""At most a fiftieth of the time goes into making them, however large the cluster is."""


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
            summary="What each GPU type has left",
            responses=problem_responses(401, 503),
        )
        router.add_api_route(
            "/cluster/status",
            self.status,
            response_model=ClusterStatus,
            summary="Nodes and reservations in numbers",
            responses=problem_responses(401, 503),
        )
        router.add_api_route(
            "/cluster/plan",
            self.plan,
            response_model=ClusterPlan,
            summary="The coming hours by the planned ends",
            responses=problem_responses(401, 422, 503),
        )
        return router

    async def availability(self, _caller: Caller) -> Response:
        """Per type: what is free, the most one reservation could start with now, who waits, and how long one GPU
        (or a CPU type's slot) asked for now would take."""
        return JsonResponse(await self._availability.get_value())

    async def status(self, _caller: Caller) -> Response:
        """The nodes as last seen (of a CPU node, user slots are counted), and whether a processor is alive."""
        return JsonResponse(await self._status.get_value())

    async def plan(self, caller: Caller, hours: Hours = 12.0, gpu_type: GpuTypeFilter = None) -> Response:
        """Of every node, how many GPUs are in use when; of those who wait, when and where they start."""
        return JsonResponse(await self._cluster_plan.view_plan(caller.user, hours, gpu_type))

    async def _load_status(self) -> ClusterStatus:
        return await self._cluster_status.cluster_status(is_planning=await self._is_planning())
