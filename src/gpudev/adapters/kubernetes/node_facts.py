"""Nodes and pods as seen → what each node offers: pure.

A node's units are what it has for pods (its allocatable GPUs, or a CPU node's user slots). Everything that is bound to
it and has not ended is taken off, wherever it is in its life: still pulling its image, or on its way out. Foreign pods
count as foreign units; so does work without GPUs that leaves too few processors or too little memory for ours.

Our own pods are never foreign: while a reservation holds its units, its row says so, from before the pod exists until
after it is gone. Counting the pod too would count it twice. An orphan of ours (a pod whose reservation has no row)
shows in `ServerSeen.held` instead, and whoever knows the rows counts it as used until it is gone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudev.adapters.kubernetes.demand import Demand
from gpudev.adapters.kubernetes.sizing import room_of_type, share_of
from gpudev.adapters.kubernetes.trimming import NodeRecord, PodRecord
from gpudev.domain.capacity import Node
from gpudev.domain.gpu import Catalogue, GpuType
from gpudev.settings import KubernetesSettings

DEV_SERVER_PREFIX = "gpu-dev-"
"""Whoever's a pod of such a name is, it takes a user slot of a CPU node."""
_ADDRESSES = {
    "external": ("ExternalIP", "InternalIP", "Hostname"),
    "internal": ("InternalIP", "ExternalIP", "Hostname"),
    "hostname": ("Hostname", "ExternalDNS", "InternalDNS", "ExternalIP", "InternalIP"),
}


@dataclass(frozen=True, slots=True)
class NodesSeen:
    nodes: tuple[Node, ...]
    ignored: Mapping[str, str]
    """Nodes that are none of ours, each with the reason in words."""


def see_nodes(
    nodes: Iterable[NodeRecord],
    pods_on: Callable[[str], Sequence[PodRecord]],
    catalogue: Catalogue,
    settings: KubernetesSettings,
) -> NodesSeen:
    """In the order of their names."""
    by_instance = types_by_instance(catalogue)
    seen: list[Node] = []
    ignored: dict[str, str] = {}
    for record in sorted(nodes, key=lambda one: one.name):
        found = find_type(record, catalogue, by_instance, settings.gpu_type_label)
        if isinstance(found, GpuType):
            seen.append(see_node(record, found, pods_on(record.name), settings))
        else:
            ignored[record.name] = found
    return NodesSeen(tuple(seen), ignored)


def see_node(record: NodeRecord, gpu_type: GpuType, pods: Iterable[PodRecord], settings: KubernetesSettings) -> Node:
    units = gpu_type.units_per_node if gpu_type.is_cpu else record.gpus
    return Node(
        name=record.name,
        gpu_type=gpu_type.name,
        units=units,
        ready=record.ready,
        schedulable=not record.cordoned and set(record.taints) <= set(settings.tolerated_taints),
        foreign_units=_foreign_units(record, gpu_type, units, pods),
        address=address_of(record, settings.node_address),
        zone=record.zone,
    )


def find_type(
    record: NodeRecord, catalogue: Catalogue, by_instance: Mapping[str, GpuType], label: str
) -> GpuType | str:
    """Its type, or why it has none, in words. A label that names no type is not overruled: somebody meant it."""
    if record.type_label is not None:
        known = catalogue.get(record.type_label) or catalogue.get(record.type_label.lower())
        return known or f"its label {label} says {record.type_label!r}, which is no GPU type"
    if record.instance_type is None:
        return f"it has neither a label {label} nor an instance type"
    return by_instance.get(record.instance_type) or f"instance type {record.instance_type} is no GPU type's"


def address_of(record: NodeRecord, preference: str) -> str:
    by_kind = dict(reversed(record.addresses))  # of several of a kind, the first
    return next((by_kind[kind] for kind in _ADDRESSES[preference] if kind in by_kind), "")


def types_by_instance(catalogue: Catalogue) -> dict[str, GpuType]:
    """An instance type that several GPU types share tells nothing, unless one alone of them is offered. Neither does a
    CPU type's: the control plane's own nodes are of such types too, and only a label says that one is for users."""
    sharing: defaultdict[str, list[GpuType]] = defaultdict(list)
    for gpu_type in catalogue.values():
        sharing[gpu_type.instance_type].append(gpu_type)
    chosen = ([one for one in types if one.is_active] or types for types in sharing.values())
    return {types[0].instance_type: types[0] for types in chosen if len(types) == 1 and not types[0].is_cpu}


def _foreign_units(record: NodeRecord, gpu_type: GpuType, units: int, pods: Iterable[PodRecord]) -> int:
    """What foreign pods leave us too little of, counted in units."""
    used, users = Demand(), 0
    for pod in pods:
        if pod.own is None and not pod.ended:
            used += pod.demand
            users += pod.name.startswith(DEV_SERVER_PREFIX)
    if not units:
        return 0
    room = record.room or room_of_type(gpu_type)
    one = share_of(room, 1, units)
    left = min(
        units - users if gpu_type.is_cpu else units - used.gpus,
        (room.cpu_millis - used.cpu_millis) // one.cpu_millis,
        (room.memory_mib - used.memory_mib) // one.memory_mib,
    )
    return units - max(0, min(units, left))
