"""Values of a plan: requests, starts, and queued requests with their estimates."""

from dataclasses import dataclass
from datetime import timedelta

from gpudev.domain.cluster import NodeShare, ZoneConstraint
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate


@dataclass(frozen=True, slots=True)
class Request:
    """A queued reservation, as the planner sees it. Order: higher priority first, then fair rank, then seq."""

    reservation_id: ReservationId
    seq: int
    gpu_type: str
    units_per_node: int
    """GPUs on each node (for a gang: all of the node), or 1 slot of a CPU node."""
    node_count: int
    duration: timedelta
    priority: int = 0
    slots: bool = False
    """True: a user slot of a CPU node, which has no GPU index."""
    fair_rank: int = 0
    """Order within a priority under fair share; 0 without it."""
    zone_constraint: ZoneConstraint | None = None
    """None: any node."""


@dataclass(frozen=True, slots=True)
class Start:
    """Starts now, on these nodes."""

    reservation_id: ReservationId
    shares: tuple[NodeShare, ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """Waits. The planner's estimates have no interval; forecasts add it."""

    reservation_id: ReservationId
    estimate: Estimate
