"""Values of a plan: requests, starts, and queued requests with their estimates."""

from dataclasses import dataclass
from datetime import timedelta

from gpudev.domain.cluster import NodeShare, ZoneConstraint
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate


@dataclass(frozen=True, slots=True)
class Request:
    """A waiting reservation, as the planner sees it. Order: higher priority first, then turn, then seq."""

    reservation_id: ReservationId
    seq: int
    gpu_type: str
    units_per_node: int
    """GPUs on each node (all of a node's, for a gang), or 1 slot of a CPU node."""
    node_count: int
    duration: timedelta
    priority: int = 0
    slots: bool = False
    """True: a user slot of a CPU node, which has no GPU index."""
    fair_rank: int = 0
    """Whose turn it is within a priority, where something else than arrival decides that."""
    zone_constraint: ZoneConstraint | None = None
    """None: any node will do."""


@dataclass(frozen=True, slots=True)
class Start:
    """Starts now, there."""

    reservation_id: ReservationId
    shares: tuple[NodeShare, ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """Waits. The planner expects nothing: its estimates have no interval."""

    reservation_id: ReservationId
    estimate: Estimate
