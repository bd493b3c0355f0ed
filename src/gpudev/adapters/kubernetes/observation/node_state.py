"""Nodes and pods as seen → what each node offers: pure.

A node's units are what it has for pods (its allocatable GPUs, or a CPU node's user slots). Everything that is bound to
it and has not ended is taken off, wherever it is in its life: still pulling its image, or on its way out. Foreign pods
count as foreign units; so does work without GPUs that leaves too few processors or too little memory for ours. What
runs on every node (daemons) makes the shares smaller instead: it never goes, and a GPU beside it is still a GPU.

Our own pods are never foreign: while a reservation holds its units, its row says so, from before the pod exists until
after it is gone. Counting the pod too would count it twice. An orphan of ours (a pod whose reservation has no row)
shows in `ServerSeen.held` instead, and whoever knows the rows counts it as used until it is gone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudev.adapters.kubernetes.cache.object_records import NodeRecord, PodRecord
from gpudev.adapters.kubernetes.objects.compute_resources import Demand
from gpudev.adapters.kubernetes.observation.node_gpu_types import find_type, types_by_instance
from gpudev.adapters.kubernetes.sizing import Room, room_of_type, share_of
from gpudev.domain.cluster import Node
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


def see_node(record: NodeRecord, gpu_type: GpuType, pods: Sequence[PodRecord], settings: KubernetesSettings) -> Node:
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


def address_of(record: NodeRecord, preference: str) -> str:
    by_kind = dict(reversed(record.addresses))  # of several of a kind, the first
    return next((by_kind[kind] for kind in _ADDRESSES[preference] if kind in by_kind), "")


def staying_on(pods: Iterable[PodRecord]) -> Demand:
    """What others' pods that belong to the node take, whoever comes and goes."""
    return sum((pod.demand for pod in pods if pod.stays and not pod.ended), Demand())


def _foreign_units(record: NodeRecord, gpu_type: GpuType, units: int, pods: Sequence[PodRecord]) -> int:
    """What foreign pods leave us too little of, counted in units."""
    if not units:
        return 0
    room = record.room or room_of_type(gpu_type)
    one = share_of(room, 1, units, staying_on(pods))
    used, users = Demand(), 0
    for pod in (each for each in pods if not each.ended):
        if pod.own is not None:
            used += _beyond(pod.demand, one)
        else:
            used += pod.demand
            users += pod.name.startswith(DEV_SERVER_PREFIX)
    left = min(
        units - users if gpu_type.is_cpu else units - used.gpus,
        (room.cpu_millis - used.cpu_millis) // one.cpu_millis,
        (room.memory_mib - used.memory_mib) // one.memory_mib,
    )
    return units - max(0, min(units, left))


def _beyond(own: Demand, one: Room) -> Demand:
    """What one of ours has beyond its units' share: it was made when there was more, or somebody added to it."""
    units = max(1, own.gpus)
    return Demand(
        cpu_millis=max(0, own.cpu_millis - units * one.cpu_millis),
        memory_mib=max(0, own.memory_mib - units * one.memory_mib),
    )
