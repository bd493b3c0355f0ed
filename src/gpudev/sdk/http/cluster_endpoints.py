"""Endpoints for the cluster, as data: availability, status, health, the plan and the accuracy of its estimates."""

from typing import TYPE_CHECKING

from gpudev.sdk.http.endpoints import ApiCall, read_call
from gpudev.wire.cluster import AvailabilityList, ClusterStatus, Health

if TYPE_CHECKING:
    from gpudev.wire.queue import ClusterPlan, EtaReportView


def list_availability() -> ApiCall[AvailabilityList]:
    return read_call(AvailabilityList, "/v1/gpu/availability")


def get_cluster_status() -> ApiCall[ClusterStatus]:
    return read_call(ClusterStatus, "/v1/cluster/status")


def get_health() -> ApiCall[Health]:
    return read_call(Health, "/health")


def get_plan(hours: float, gpu_type: str | None) -> "ApiCall[ClusterPlan]":
    from gpudev.wire.queue import ClusterPlan  # slow to load, and few commands need it

    query = {"hours": f"{hours:g}"} | ({"gpu_type": gpu_type} if gpu_type else {})
    return read_call(ClusterPlan, "/v1/cluster/plan", query)


def get_eta_report(days: float | None, gpu_type: str | None) -> "ApiCall[EtaReportView]":
    from gpudev.wire.queue import EtaReportView

    query = ({"days": f"{days:g}"} if days is not None else {}) | ({"gpu_type": gpu_type} if gpu_type else {})
    return read_call(EtaReportView, "/v1/stats/eta", query)
