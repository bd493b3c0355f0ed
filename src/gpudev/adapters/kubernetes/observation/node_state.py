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
from gpudev.adapters.kubernetes.objects.compute_resources import (
    CpuMemory,
    ResourceRequests,
    catalogue_resources,
    compute_share,
)
from gpudev.adapters.kubernetes.observation.node_gpu_types import find_gpu_type, gpu_types_by_instance
from gpudev.domain.cluster import Catalogue, GpuType, Node
from gpudev.settings import KubernetesSettings

DEV_SERVER_PREFIX = "gpu-dev-"
"""Whoever's a pod of such a name is, it takes a user slot of a CPU node."""
_ADDRESS_PREFERENCES = {
    "external": ("ExternalIP", "InternalIP", "Hostname"),
    "internal": ("InternalIP", "ExternalIP", "Hostname"),
    "hostname": ("Hostname", "ExternalDNS", "InternalDNS", "ExternalIP", "InternalIP"),
}


@dataclass(frozen=True, slots=True)
class NodeStates:
    nodes: tuple[Node, ...]
    ignored: Mapping[str, str]
    """Nodes that are none of ours, each with the reason in words."""


def compute_node_states(
    nodes: Iterable[NodeRecord],
    pods_on: Callable[[str], Sequence[PodRecord]],
    catalogue: Catalogue,
    settings: KubernetesSettings,
) -> NodeStates:
    """In the order of their names."""
    by_instance = gpu_types_by_instance(catalogue)
    seen: list[Node] = []
    ignored: dict[str, str] = {}
    for record in sorted(nodes, key=lambda one: one.name):
        found = find_gpu_type(record, catalogue, by_instance, settings.gpu_type_label)
        if isinstance(found, GpuType):
            seen.append(compute_node_state(record, found, pods_on(record.name), settings))
        else:
            ignored[record.name] = found
    return NodeStates(tuple(seen), ignored)


def compute_node_state(
    record: NodeRecord, gpu_type: GpuType, pods: Sequence[PodRecord], settings: KubernetesSettings
) -> Node:
    units = gpu_type.units_per_node if gpu_type.is_cpu else record.gpus
    return Node(
        name=record.name,
        gpu_type=gpu_type.name,
        units=units,
        ready=record.ready,
        schedulable=not record.cordoned and set(record.taints) <= set(settings.tolerated_taints),
        foreign_units=_foreign_units(record, gpu_type, units, pods),
        address=choose_node_address(record, settings.node_address),
        zone=record.zone,
    )


def choose_node_address(record: NodeRecord, preference: str) -> str:
    by_kind = dict(reversed(record.addresses))  # of several of a kind, the first
    return next((by_kind[kind] for kind in _ADDRESS_PREFERENCES[preference] if kind in by_kind), "")


def sum_daemon_requests(pods: Iterable[PodRecord]) -> ResourceRequests:
    """What others' pods that belong to the node take, whoever comes and goes."""
    return sum((pod.requests for pod in pods if pod.is_node_bound and not pod.has_ended), ResourceRequests())


def _foreign_units(record: NodeRecord, gpu_type: GpuType, units: int, pods: Sequence[PodRecord]) -> int:
    """What foreign pods leave us too little of, counted in units."""
    if not units:
        return 0
    room = record.allocatable or catalogue_resources(gpu_type)
    one = compute_share(room, 1, units, sum_daemon_requests(pods))
    used, users = ResourceRequests(), 0
    for pod in (each for each in pods if not each.has_ended):
        if pod.member is not None:
            used += _excess_requests(pod.requests, one)
        else:
            used += pod.requests
            users += pod.name.startswith(DEV_SERVER_PREFIX)
    left = min(
        units - users if gpu_type.is_cpu else units - used.gpus,
        (room.cpu_millis - used.cpu_millis) // one.cpu_millis,
        (room.memory_mib - used.memory_mib) // one.memory_mib,
    )
    return units - max(0, min(units, left))


def _excess_requests(own: ResourceRequests, one: CpuMemory) -> ResourceRequests:
    """What one of ours has beyond its units' share: it was made when there was more, or somebody added to it."""
    units = max(1, own.gpus)
    return ResourceRequests(
        cpu_millis=max(0, own.cpu_millis - units * one.cpu_millis),
        memory_mib=max(0, own.memory_mib - units * one.memory_mib),
    )
