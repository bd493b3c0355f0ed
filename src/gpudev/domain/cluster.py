"""Nodes, GPU types, allocations, zone constraints, cordons and GPU usage."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib.resources import files

from gpudev.domain.errors import Invalid
from gpudev.domain.ids import ReservationId


@dataclass(frozen=True, slots=True)
class Node:
    """A machine as last observed. Units in unmanaged use (`foreign_units`) are never planned with."""

    name: str
    gpu_type: str
    units: int
    ready: bool = True
    schedulable: bool = True
    foreign_units: int = 0
    foreign_indices: frozenset[int] = frozenset()
    """The GPUs in unmanaged use, where they are known (one machine); included in foreign_units."""
    simulated: bool = False
    address: str = ""
    zone: str | None = None
    """The zone for volumes. None: volumes are not bound to zones here."""
    closed_because: str | None = None
    """The reason of an operator's cordon (may be empty). None: no cordon. The cluster can also close nodes itself."""

    @property
    def offers(self) -> bool:
        return self.ready and self.schedulable


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node's part in a reservation. Users log in to rank 0."""

    rank: int
    node: str
    units: int
    gpu_indices: tuple[int, ...] = ()
    """The GPUs, where the planner chooses them (one machine). Empty where the cluster does, and for CPU slots."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one reservation holds until its release: while it is prepared, runs, or is torn down."""

    reservation_id: ReservationId
    gpu_type: str
    shares: tuple[NodeShare, ...]
    until: datetime | None
    """The planned end. None: it has ended and is being torn down."""


@dataclass(frozen=True, slots=True)
class ZoneConstraint:
    """Binds a request to its disk's zones, because volumes cannot leave their zone."""

    disk_name: str
    zones: frozenset[str]
    """Where the disk's volume can be attached."""
    move_time: timedelta | None = None
    """How long it takes to create the volume anew in another zone, counted from the placement there. None:
    impossible."""


# Cordons: nodes that operators closed for new work.


_MAX_REASON_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Cordon:
    node: str
    by: str
    reason: str
    """Shown to queued users; may be empty."""
    at: datetime


def check_cordon_reason(reason: str) -> str:
    """It is shown in terminals, so it must not contain control characters."""
    if len(reason) > _MAX_REASON_LENGTH or not reason.isprintable():
        raise Invalid(f"a reason is one line of at most {_MAX_REASON_LENGTH} printable characters", field="reason")
    return reason.strip()


def apply_cordons(nodes: Iterable[Node], cordons: Mapping[str, Cordon]) -> tuple[Node, ...]:
    """The observed nodes, with cordoned ones closed."""
    return tuple(
        node
        if (cordon := cordons.get(node.name)) is None
        else replace(node, schedulable=False, closed_because=cordon.reason)
        for node in nodes
    )


def describe_closed_node(node: Node) -> str:
    """A phrase to follow the node's name and a verb."""
    return f"closed for new work: {node.closed_because}" if node.closed_because else "closed for new work"


# GPU types: what one node of a type has, and which requests it can ever hold.


SLOTS_PER_CPU_NODE = 3
MAX_NODES = 4
SINGLE_COUNTS = (1, 2, 4, 8, 16)
"""Counts on one node; 24 and 32 are three and four whole nodes of a multinode type."""
ALL_COUNTS = (*SINGLE_COUNTS, 24, 32)


@dataclass(frozen=True, slots=True)
class GpuType:
    name: str
    instance_type: str
    max_gpus: int
    """GPUs per node; 0 for a CPU type."""
    cpus: int
    memory_gb: int
    multinode: bool = False
    description: str = ""
    is_active: bool = True
    """Whether it is offered. Reservations made before it was deactivated continue."""

    @property
    def is_cpu(self) -> bool:
        return self.max_gpus == 0

    @property
    def units_per_node(self) -> int:
        """What one node offers: its GPUs, or a CPU node's user slots."""
        return SLOTS_PER_CPU_NODE if self.is_cpu else self.max_gpus

    @property
    def max_gpus_per_reservation(self) -> int:
        """The maximum for one reservation of this type."""
        return self.max_gpus * (MAX_NODES if self.multinode else 1)

    def allowed_counts(self) -> tuple[int, ...]:
        if self.is_cpu:
            return (0,)
        within = tuple(n for n in SINGLE_COUNTS if n <= self.max_gpus)
        if not self.multinode:
            return within
        whole = (nodes * self.max_gpus for nodes in range(2, MAX_NODES + 1))
        return within + tuple(n for n in whole if n in ALL_COUNTS)

    def node_count(self, gpu_count: int) -> int:
        """Nodes that a request of an allowed count takes."""
        if self.is_cpu or gpu_count <= self.max_gpus:
            return 1
        return gpu_count // self.max_gpus


Catalogue = Mapping[str, GpuType]


def load_catalogue() -> Catalogue:
    """The seed of the database table, which is authoritative at run time."""
    text = files("gpudev.domain").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: GpuType(name=name, **row) for name, row in tomllib.loads(text).items()}


# GPU usage, as last measured.


@dataclass(frozen=True, slots=True)
class GpuUse:
    gpu: str
    """Its index on the node, as nvidia-smi shows it."""
    node: str
    at: datetime
    busy: float | None = None
    """Utilization, from 0 to 1. None: not measured."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
