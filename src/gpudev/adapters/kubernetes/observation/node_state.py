"""State of nodes, from records of nodes and pods. Pure.

A node's units are what it has for pods: its allocatable GPUs, or the user slots of a CPU node. Every pod that is bound
to the node and has not ended is subtracted, also while it still pulls its image or is being deleted. Foreign pods count
as foreign units. So do foreign pods without GPUs that leave too little CPU or memory for ours. Daemons, which run on
every node, make the shares smaller instead: they never end, and the GPUs beside them stay usable.

Our own pods are never foreign: the reservation's row holds its units from before the pod exists until after it is gone,
so counting the pod too would count it twice. An orphan of ours (a pod whose reservation has no row) shows in
`ServerState.node_shares` instead; the planning loop, which knows the rows, counts it as used until it is gone.
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
"""A pod with such a name takes a user slot of a CPU node, also if it is foreign."""
_ADDRESS_PREFERENCES = {
    "external": ("ExternalIP", "InternalIP", "Hostname"),
    "internal": ("InternalIP", "ExternalIP", "Hostname"),
    "hostname": ("Hostname", "ExternalDNS", "InternalDNS", "ExternalIP", "InternalIP"),
}


@dataclass(frozen=True, slots=True)
class NodeStates:
    nodes: tuple[Node, ...]
    ignored: Mapping[str, str]
    """Nodes without a GPU type, each with the reason."""


def compute_node_states(
    nodes: Iterable[NodeRecord],
    pods_on: Callable[[str], Sequence[PodRecord]],
    catalogue: Catalogue,
    settings: KubernetesSettings,
) -> NodeStates:
    """Ordered by name."""
    by_instance = gpu_types_by_instance(catalogue)
    states: list[Node] = []
    ignored: dict[str, str] = {}
    for record in sorted(nodes, key=lambda one: one.name):
        found = find_gpu_type(record, catalogue, by_instance, settings.gpu_type_label)
        if isinstance(found, GpuType):
            states.append(compute_node_state(record, found, pods_on(record.name), settings))
        else:
            ignored[record.name] = found
    return NodeStates(tuple(states), ignored)


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
    by_kind = dict(reversed(record.addresses))  # the first of each kind wins
    return next((by_kind[kind] for kind in _ADDRESS_PREFERENCES[preference] if kind in by_kind), "")


def sum_daemon_requests(pods: Iterable[PodRecord]) -> ResourceRequests:
    """Requests of the foreign pods that belong to the node and stay on it."""
    return sum((pod.requests for pod in pods if pod.is_node_bound and not pod.has_ended), ResourceRequests())


def _foreign_units(record: NodeRecord, gpu_type: GpuType, units: int, pods: Sequence[PodRecord]) -> int:
    """Units that foreign pods make unusable: by their GPUs or slots, or because too little CPU or memory is left."""
    if not units:
        return 0
    total = record.allocatable or catalogue_resources(gpu_type)
    unit_share = compute_share(total, 1, units, sum_daemon_requests(pods))
    used, used_slots = ResourceRequests(), 0
    for pod in (each for each in pods if not each.has_ended):
        if pod.member is not None:
            used += _excess_requests(pod.requests, unit_share)
        else:
            used += pod.requests
            used_slots += pod.name.startswith(DEV_SERVER_PREFIX)
    left = min(
        units - used_slots if gpu_type.is_cpu else units - used.gpus,
        (total.cpu_millis - used.cpu_millis) // unit_share.cpu_millis,
        (total.memory_mib - used.memory_mib) // unit_share.memory_mib,
    )
    return units - max(0, min(units, left))


def _excess_requests(requests: ResourceRequests, unit_share: CpuMemory) -> ResourceRequests:
    """What a pod of ours requests beyond its units' share: the share was larger at launch, or a webhook added to it."""
    units = max(1, requests.gpus)
    return ResourceRequests(
        cpu_millis=max(0, requests.cpu_millis - units * unit_share.cpu_millis),
        memory_mib=max(0, requests.memory_mib - units * unit_share.memory_mib),
    )
