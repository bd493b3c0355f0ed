"""Endpoints for the queue, as data: the plan and the accuracy of its estimates."""

from gpudev.sdk.http.endpoints import ApiCall, read_call
from gpudev.wire.queue import ClusterPlan, EtaReportView


def get_plan(hours: float, gpu_type: str | None) -> ApiCall[ClusterPlan]:
    query = {"hours": f"{hours:g}"} | ({"gpu_type": gpu_type} if gpu_type else {})
    return read_call(ClusterPlan, "/v1/cluster/plan", query)


def get_eta_report(days: float | None, gpu_type: str | None) -> ApiCall[EtaReportView]:
    query = ({"days": f"{days:g}"} if days is not None else {}) | ({"gpu_type": gpu_type} if gpu_type else {})
    return read_call(EtaReportView, "/v1/stats/eta", query)
