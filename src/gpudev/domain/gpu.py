"""GPU types: what one node of a type has, and which requests it can ever hold."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

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
