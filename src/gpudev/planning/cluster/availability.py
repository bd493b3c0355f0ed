"""Availability of one GPU type: the numbers people see. What they say can be had now, the queue would start now
(if nobody waited); the same arithmetic per node, never on totals."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.gpu import MAX_NODES, GpuType


@dataclass(frozen=True, slots=True)
class Availability:
    """In GPUs, or user slots of a CPU type."""

    gpu_type: str
    total: int
    """On all known nodes, ready or not."""
    available: int
    """Free on nodes that offer."""
    max_reservable: int
    """The most one reservation could start with now."""
    full_nodes_available: int
    running_instances: int
    max_per_node: int
    """GPUs per node; 0 for a CPU type."""


def compute_availability(gpu_type: GpuType, nodes: Sequence[Node], allocations: Sequence[Allocation]) -> Availability:
    own = [node for node in nodes if node.gpu_type == gpu_type.name]
    free = free_units(own, allocations)
    full = [node for node in own if node.units and free[node.name] == node.units]
    return Availability(
        gpu_type=gpu_type.name,
        total=sum(node.units for node in own),
        available=sum(free.values()),
        max_reservable=_max_reservable(gpu_type, max(free.values(), default=0), full),
        full_nodes_available=len(full),
        running_instances=len(own),
        max_per_node=gpu_type.max_gpus,
    )


def free_units(nodes: Sequence[Node], allocations: Sequence[Allocation]) -> dict[str, int]:
    """What each node could give now: nothing where it does not offer, never less than nothing."""
    free = {node.name: node.units - node.foreign_units for node in nodes}
    for holding in allocations:
        for share in holding.shares:
            if share.node in free:
                free[share.node] -= share.units
    return {node.name: max(0, free[node.name]) if node.offers else 0 for node in nodes}


def _max_reservable(gpu_type: GpuType, best: int, full: Sequence[Node]) -> int:
    if gpu_type.is_cpu:
        return min(1, best)
    single = min(best, gpu_type.max_gpus)
    # A gang takes nodes of the type's own size; a smaller one is full too, but no part of a gang.
    whole = sum(1 for node in full if node.units == gpu_type.max_gpus)
    if not gpu_type.multinode or not whole:
        return single
    return max(single, min(whole, MAX_NODES) * gpu_type.max_gpus)
