"""Nodes, what they offer and who holds it. Fit is decided per node, never on totals.

A *unit* is one GPU, or one user slot of a CPU node, so that one arithmetic serves both.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId


@dataclass(frozen=True, slots=True)
class Node:
    """A machine as last seen. Units that foreign work uses are never counted on."""

    name: str
    gpu_type: str
    units: int
    ready: bool = True
    schedulable: bool = True
    foreign_units: int = 0
    foreign_indices: frozenset[int] = frozenset()
    """Which GPUs foreign work uses, where that is known (one machine); counted in foreign_units."""
    simulated: bool = False
    address: str = ""
    zone: str | None = None
    """Where it is, as volumes see it. None: volumes do not care."""
    closed_because: str | None = None
    """Why an operator has closed it (it may be empty); None: none has. The cluster itself may close nodes, too."""

    @property
    def offers(self) -> bool:
        return self.ready and self.schedulable


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node's part in a reservation. Rank 0 is where people log in."""

    rank: int
    node: str
    units: int
    gpu_indices: tuple[int, ...] = ()
    """Which GPUs, where we choose them (one machine); empty where the cluster does, or for CPU slots."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one reservation holds until it is released: running, being prepared, or being torn down."""

    reservation_id: ReservationId
    gpu_type: str
    shares: tuple[NodeShare, ...]
    until: datetime | None
    """The planned end. None: it has ended and is being torn down."""


@dataclass(frozen=True, slots=True)
class ZoneConstraint:
    """What keeps a request near its disk. Volumes cannot leave their zone."""

    disk_name: str
    zones: frozenset[str]
    """Where the disk's volume can be attached."""
    move_time: timedelta | None = None
    """How long it takes to make the volume anew in another zone, after its reservation was given a place there. None:
    it cannot be."""
