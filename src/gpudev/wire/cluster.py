"""Availability, the cluster's state, keys, health and errors on the wire."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class GpuAvailability:
    gpu_type: str
    description: str
    instance_type: str
    max_per_node: int
    multinode: bool
    total_cluster_gpus: int
    available_gpus: int
    max_reservable: int
    full_nodes_available: int
    running_instances: int
    desired_capacity: int
    queue_length: int
    estimated_wait_minutes: int | None = field(
        metadata={"description": "Expected wait for one GPU (or slot) asked for now; 0: starts at once; null: unknown"}
    )
    latest_wait_minutes: int | None = field(metadata={"description": "The same if nobody leaves early"})
    wait_reason: str | None = field(metadata={"description": "Why it would wait; null: it would not, or unknown"})
    simulated: bool
    last_availability_update: datetime | None
    last_availability_updated_by: str | None
    age_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class AvailabilityList:
    gpu_types: list[GpuAvailability]


@dataclass(frozen=True, kw_only=True)
class NodeView:
    name: str
    gpu_type: str
    ready: bool
    schedulable: bool
    simulated: bool
    total_gpus: int
    used_gpus: int
    available_gpus: int


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    nodes: list[NodeView]
    total_gpus: int
    available_gpus: int
    active_reservations: int
    preparing_reservations: int
    queued_reservations: int
    processor: str = field(metadata={"description": "alive, or why nobody is planning"})
    seen_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class KeyView:
    """A key, shown once."""

    api_key: str
    expires_at: datetime | None
    username: str


@dataclass(frozen=True, kw_only=True)
class Health:
    status: str
    version: str
    checks: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """problem+json: `detail` is one sentence for the person who asked."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    request_id: str | None = None
