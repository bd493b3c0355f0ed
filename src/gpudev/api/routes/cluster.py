"""The endpoints about the cluster as a whole. Many ask, all get the same: answers are shared for a moment."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.responses import Response

from gpudev.api.answering import JsonAnswer
from gpudev.api.caching import Remembered
from gpudev.api.http.openapi import problems
from gpudev.api.http.parameters import GpuTypeFilter, Hours
from gpudev.api.http.routing import Caller, V1Route
from gpudev.wire.cluster import AvailabilityList, ClusterPlan, ClusterStatus
from gpudev.workflows.cluster.cluster_views import Surveying
from gpudev.workflows.foreseeing import Foreseeing

_SHARED_SECONDS = 0.2
_SHARED_TIMES = 50
"""At most a fiftieth of the time goes into making them, however large the cluster is."""


class ClusterEndpoints:
    def __init__(
        self, surveying: Surveying, foreseeing: Foreseeing, is_planning: Callable[[], Awaitable[bool]]
    ) -> None:
        self._surveying = surveying
        self._foreseeing = foreseeing
        self._is_planning = is_planning
        self._availability = Remembered(surveying.availability, _SHARED_SECONDS, times=_SHARED_TIMES)
        self._status = Remembered(self._survey_status, _SHARED_SECONDS, times=_SHARED_TIMES)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", tags=["cluster"], route_class=V1Route)
        router.add_api_route(
            "/gpu/availability",
            self.availability,
            response_model=AvailabilityList,
            summary="What each GPU type has left",
            responses=problems(401, 503),
        )
        router.add_api_route(
            "/cluster/status",
            self.status,
            response_model=ClusterStatus,
            summary="Nodes and reservations in numbers",
            responses=problems(401, 503),
        )
        router.add_api_route(
            "/cluster/plan",
            self.plan,
            response_model=ClusterPlan,
            summary="The coming hours by the planned ends",
            responses=problems(401, 422, 503),
        )
        return router

    async def availability(self, _caller: Caller) -> Response:
        """Per type: what is free, the most one reservation could start with now, who waits, and how long one GPU
        (or a CPU type's slot) asked for now would take."""
        return JsonAnswer(await self._availability.get())

    async def status(self, _caller: Caller) -> Response:
        """The nodes as last seen (of a CPU node, user slots are counted), and whether a processor is alive."""
        return JsonAnswer(await self._status.get())

    async def plan(self, caller: Caller, hours: Hours = 12.0, gpu_type: GpuTypeFilter = None) -> Response:
        """Of every node, how many GPUs are in use when; of those who wait, when and where they start."""
        return JsonAnswer(await self._foreseeing.plan(caller.user, hours, gpu_type))

    async def _survey_status(self) -> ClusterStatus:
        return await self._surveying.cluster_status(is_planning=await self._is_planning())
