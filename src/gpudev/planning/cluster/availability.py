"""Availability of one GPU type: the numbers shown to users, and planned use over the coming hours.

Whatever is shown as available now, the queue would start now (if it were empty). Computed per node, never from totals.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.cluster import Allocation, GpuType, Node


@dataclass(frozen=True, slots=True)
class Availability:
    """In GPUs, or user slots of a CPU type."""

    gpu_type: str
    total: int
    """On all known nodes, ready or not."""
    available: int
    """Free on nodes that accept new work."""
    max_reservable: int
    """The largest count that one reservation could start with now."""
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
    """Free units by node, never negative; 0 on a node that accepts no new work."""
    free = {node.name: node.units - node.foreign_units for node in nodes}
    for holding in allocations:
        for share in holding.shares:
            if share.node in free:
                free[share.node] -= share.units
    return {node.name: max(0, free[node.name]) if node.offers else 0 for node in nodes}


def _max_reservable(gpu_type: GpuType, best: int, full: Sequence[Node]) -> int:
    if gpu_type.is_cpu:
        return min(1, best)
    # A gang takes only nodes of the type's full size; smaller nodes do not count.
    whole = sum(1 for node in full if node.units == gpu_type.max_gpus)
    return max((n for n in gpu_type.allowed_counts() if _fits(gpu_type, n, best, whole)), default=0)


def _fits(gpu_type: GpuType, count: int, best: int, whole: int) -> bool:
    nodes = gpu_type.node_count(count)
    return count <= best if nodes == 1 else nodes <= whole


# Use of each node over the coming hours, by planned ends. For display only.


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """One planned reservation: start, end, and units by node."""

    begins: datetime
    ends: datetime
    nodes: tuple[str, ...]
    units: int


@dataclass(frozen=True, slots=True)
class UsageStep:
    at: datetime
    used: int


def usage_timeline(
    node: Node, allocations: Iterable[Allocation], planned_uses: Iterable[PlannedUse], now: datetime, until: datetime
) -> list[UsageStep]:
    """The first step starts now. Each lasts until the next one, the last until `until`."""
    changes: list[tuple[datetime, int]] = [(now, max(node.foreign_units, len(node.foreign_indices)))]
    for holding in allocations:
        units = sum(share.units for share in holding.shares if share.node == node.name)
        if units:
            changes.append((now, units))
            if holding.until is not None:
                changes.append((max(now, holding.until), -units))
    for booking in planned_uses:
        if node.name in booking.nodes:
            changes += [(max(now, booking.begins), booking.units), (max(now, booking.ends), -booking.units)]
    return _usage_steps(sorted(changes), until, node.units)


def _usage_steps(changes: Sequence[tuple[datetime, int]], until: datetime, most: int) -> list[UsageStep]:
    steps: list[UsageStep] = []
    used = 0
    for at, change in changes:
        if at >= until:
            break
        used += change
        if steps and steps[-1].at == at:
            steps.pop()
        shown = min(most, max(0, used))
        if not steps or steps[-1].used != shown:
            steps.append(UsageStep(at, shown))
    return steps
