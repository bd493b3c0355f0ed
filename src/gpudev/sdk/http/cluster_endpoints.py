"""Endpoints for the cluster, as data: availability, status and health.

The plan is in `queue_endpoints`, because its models are slow to load and few commands need them.
"""

from gpudev.sdk.http.endpoints import ApiCall, read_call
from gpudev.wire.cluster import AvailabilityList, ClusterStatus, Health


def list_availability() -> ApiCall[AvailabilityList]:
    return read_call(AvailabilityList, "/v1/gpu/availability")


def get_cluster_status() -> ApiCall[ClusterStatus]:
    return read_call(ClusterStatus, "/v1/cluster/status")


def get_health() -> ApiCall[Health]:
    return read_call(Health, "/health")
