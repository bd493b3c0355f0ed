"""Availability of every GPU type, from the cluster and the cloud's node groups.

The arithmetic of GPUs is in `planning.cluster.availability`. Incomplete listings are never an input here, so they
change nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.cluster import Allocation, GpuType, Node
from gpudev.planning.cluster.availability import compute_availability
from gpudev.ports.cloud import NodeGroup
from gpudev.ports.cluster import AvailabilityRow


@dataclass(frozen=True, slots=True)
class NodeGroupsByType:
    """The cloud's node groups, by GPU type."""

    prefix: str
    by_type: Mapping[str, Sequence[NodeGroup]]
    management: Sequence[NodeGroup]
    """CPU nodes of the control plane. They offer slots only if a node has a CPU type's label."""
    unmatched: Sequence[NodeGroup]
    """Named like a type's group, but no such type exists."""

    def running(self, gpu_type: str) -> int:
        return sum(group.in_service for group in self.by_type.get(gpu_type, ()))

    def desired(self, gpu_type: str) -> int:
        return sum(group.desired for group in self.by_type.get(gpu_type, ()))


def group_prefix(prefix: str) -> str:
    """The prefix of all our groups' names."""
    return f"{prefix}-"


def group_pattern(prefix: str, gpu_type: str) -> str:
    return f"{prefix}-gpu-nodes-{gpu_type}*"


def assign_groups(groups: Iterable[NodeGroup], prefix: str, type_names: Collection[str]) -> NodeGroupsByType:
    """`type_names`: all types, including inactive ones. A group belongs to the longest type name that matches whole
    words, so h100 gets the groups of neither h100-spot nor h1000."""
    by_type: defaultdict[str, list[NodeGroup]] = defaultdict(list)
    management: list[NodeGroup] = []
    unmatched: list[NodeGroup] = []
    of_types, of_management = f"{prefix}-gpu-nodes-", f"{prefix}-cpu-nodes"
    for group in sorted(groups, key=lambda group: group.name):
        if group.name.startswith(of_types):
            name = _longest_whole_name(group.name.removeprefix(of_types), type_names)
            (unmatched if name is None else by_type[name]).append(group)
        elif _has_whole_prefix(group.name, of_management):
            management.append(group)
    return NodeGroupsByType(prefix, dict(by_type), management, unmatched)


@dataclass(frozen=True, slots=True)
class PlannedAvailability:
    row: AvailabilityRow
    """`updated_at`: when the facts were observed."""
    warnings: tuple[str, ...] = ()


def plan_availability(
    gpu_type: GpuType,
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    groups: NodeGroupsByType | None,
    *,
    at: datetime,
    by: str,
) -> PlannedAvailability:
    """`nodes` and `allocations` must be complete and may be of any type. `groups` None: there is no cloud, so only the
    nodes of the cluster count."""
    availability = compute_availability(gpu_type, nodes, allocations)
    has_groups = groups is not None and gpu_type.name in groups.by_type
    running = groups.running(gpu_type.name) if groups is not None and has_groups else availability.running_instances
    row = AvailabilityRow(
        gpu_type=gpu_type.name,
        total_cluster_gpus=availability.total if availability.running_instances else running * gpu_type.units_per_node,
        available_gpus=availability.available,
        max_reservable=availability.max_reservable,
        full_nodes_available=availability.full_nodes_available,
        running_instances=running,
        desired_capacity=groups.desired(gpu_type.name) if groups is not None and has_groups else running,
        max_per_node=availability.max_per_node,
        updated_at=at,
        updated_by=by,
    )
    return PlannedAvailability(row, () if groups is None else tuple(_warnings(gpu_type, groups, has_groups)))


def unmatched_warnings(groups: NodeGroupsByType) -> list[str]:
    return [f"group {group.name} matches no GPU type and is ignored" for group in groups.unmatched]


def changed_columns(row: AvailabilityRow, before: AvailabilityRow | None) -> dict[str, tuple[int | None, int]]:
    """Changed columns → (old, new)."""
    return {
        name: (getattr(before, name) if before else None, getattr(row, name))
        for name in _NUMBERS
        if before is None or getattr(before, name) != getattr(row, name)
    }


_NUMBERS = (
    "total_cluster_gpus",
    "available_gpus",
    "max_reservable",
    "full_nodes_available",
    "running_instances",
    "desired_capacity",
    "max_per_node",
)


def _warnings(gpu_type: GpuType, groups: NodeGroupsByType, has_groups: bool) -> Iterable[str]:
    if has_groups or (gpu_type.is_cpu and groups.management):
        return
    pattern = group_pattern(groups.prefix, gpu_type.name)
    yield f"no node group matches {pattern}; using the cluster's own count of nodes"


def _longest_whole_name(text: str, names: Collection[str]) -> str | None:
    return max((name for name in names if _has_whole_prefix(text, name)), key=len, default=None)


def _has_whole_prefix(text: str, name: str) -> bool:
    """Whether it starts with the name and the word ends there."""
    return text.startswith(name) and not text[len(name) : len(name) + 1].isalnum()
