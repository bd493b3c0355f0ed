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


# Cordons: nodes that operators closed for new work.


_MAX_REASON_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Cordon:
    node: str
    by: str
    reason: str
    """For everybody who waits; may be empty."""
    at: datetime


def check_cordon_reason(reason: str) -> str:
    """It is shown in terminals, so nothing in it may move a cursor."""
    if len(reason) > _MAX_REASON_LENGTH or not reason.isprintable():
        raise Invalid(f"a reason is one line of at most {_MAX_REASON_LENGTH} printable characters", field="reason")
    return reason.strip()


def apply_cordons(nodes: Iterable[Node], cordons: Mapping[str, Cordon]) -> tuple[Node, ...]:
    """The nodes as the cluster shows them, less what operators have closed."""
    return tuple(
        node
        if (cordon := cordons.get(node.name)) is None
        else replace(node, schedulable=False, closed_because=cordon.reason)
        for node in nodes
    )


def describe_closed_node(node: Node) -> str:
    """In words, to follow the node's name and a verb."""
    return f"closed for new work: {node.closed_because}" if node.closed_because else "closed for new work"


# GPU types: what one node of a type has, and which requests it can ever hold.


SLOTS_PER_CPU_NODE = 3
MAX_NODES = 4
SINGLE_COUNTS = (1, 2, 4, 8, 16)
"""Counts anybody may ask for; 24 and 32 exist too, as three and four whole nodes of a multinode type."""
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
    """Whether it is offered. What runs or waits when that ends goes on."""

    @property
    def is_cpu(self) -> bool:
        return self.max_gpus == 0

    @property
    def units_per_node(self) -> int:
        """What one node offers: its GPUs, or a CPU node's user slots."""
        return SLOTS_PER_CPU_NODE if self.is_cpu else self.max_gpus

    @property
    def max_gpus_per_reservation(self) -> int:
        """The most one reservation of this type can ever hold."""
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
        """How many nodes a request of an allowed count takes."""
        if self.is_cpu or gpu_count <= self.max_gpus:
            return 1
        return gpu_count // self.max_gpus


Catalogue = Mapping[str, GpuType]


def load_catalogue() -> Catalogue:
    """The seed of the database's table; at run time the table is the truth."""
    text = files("gpudev.domain").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: GpuType(name=name, **row) for name, row in tomllib.loads(text).items()}


# GPU usage, as last measured.


@dataclass(frozen=True, slots=True)
class GpuUse:
    gpu: str
    """Its number on its node, as people there see it (nvidia-smi)."""
    node: str
    at: datetime
    busy: float | None = None
    """Which share of the time it computed, from 0 to 1. None: not measured."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
