"""Availability, cluster status, health and errors on the wire."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class ClosedNode:
    """A node that runs but accepts no new work."""

    name: str
    reason: str | None = field(metadata={"description": "The operator's reason; null: none given"})


@dataclass(frozen=True, kw_only=True)
class GpuAvailability:
    gpu_type: str
    description: str
    instance_type: str
    max_per_node: int
    multinode: bool
    total_cluster_gpus: int
    available_gpus: int
    max_reservable: int = field(metadata={"description": "The most GPUs that one reservation could start with now"})
    full_nodes_available: int
    running_instances: int
    desired_capacity: int
    queue_length: int
    estimated_wait_minutes: int | None = field(
        metadata={"description": "Expected wait for one GPU (or slot) requested now; 0: starts at once; null: unknown"}
    )
    latest_wait_minutes: int | None = field(metadata={"description": "The same if nobody leaves early"})
    wait_reason: str | None = field(metadata={"description": "Why it would wait; null: it would not, or unknown"})
    simulated: bool
    last_availability_update: datetime | None
    last_availability_updated_by: str | None
    age_seconds: float | None
    closed_nodes: list[ClosedNode] = field(default_factory=list)


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
    cordoned: bool = field(default=False, metadata={"description": "Whether an operator has closed it for new work"})
    cordon_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class CordonRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    reason: str = field(
        default="", metadata={"description": "Shown to queued users: one line of at most 200 printable characters"}
    )


@dataclass(frozen=True, kw_only=True)
class CordonView:
    """The cordon state of one node."""

    name: str
    cordoned: bool
    by: str | None
    reason: str | None
    at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    nodes: list[NodeView]
    total_gpus: int
    available_gpus: int
    active_reservations: int
    preparing_reservations: int
    queued_reservations: int
    processor: str = field(metadata={"description": "alive, or why no processor plans"})
    seen_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Health:
    status: str
    version: str
    checks: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """problem+json: `detail` is one sentence for the user."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    request_id: str | None = None
    times: dict[str, datetime] | None = None
    """Times in `detail`: each as written there (UTC), and as a timestamp. Absent: there are none."""
