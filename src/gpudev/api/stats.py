"""The endpoint that says how good the estimates were."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from gpudev.api.answering import JsonResponse
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import Days, GpuTypeFilter
from gpudev.api.http.routing import Caller, V1Route
from gpudev.wire.queue import EtaReportView
from gpudev.workflows.cluster.eta_report import EtaReports
from gpudev.workflows.reservation_views import sees_everything


@dataclass(frozen=True, slots=True)
class EtaStatisticsEndpoints:
    eta_statistics: EtaReports

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/stats", tags=["stats"], route_class=V1Route)
        router.add_api_route(
            "/eta",
            self.eta,
            response_model=EtaReportView,
            summary="How good the estimates were",
            responses=problem_responses(401, 422, 503),
        )
        return router

    async def eta(self, caller: Caller, days: Days = 7.0, gpu_type: GpuTypeFilter = None) -> Response:
        """What people were told when they began to wait, beside when they started: the error of `expected` and of
        `latest`, how often the interval was true, and how often `latest` was broken, by cause."""
        found = await self.eta_statistics.report_eta(days, gpu_type, name_breaches=sees_everything(caller.user))
        return JsonResponse(found)
