"""State and GPU type of nodes, from records of nodes and pods. Pure.

A node's units are what it has for pods: its allocatable GPUs, or the user slots of a CPU node. Every pod that is bound
to the node and has not ended is subtracted, also while it still pulls its image or is being deleted. Foreign pods count
as foreign units. So do foreign pods without GPUs that leave too little CPU or memory for ours. Daemons, which run on
every node, make the shares smaller instead: they never end, and the GPUs stay usable.

Our own pods are never foreign: the reservation's row holds its units from before the pod exists until after it is gone,
so counting the pod too would count it twice. An orphan of ours (a pod whose reservation has no row) shows in
`ServerState.node_shares` instead; the planning loop, which knows the rows, counts it as used until it is gone.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudev.adapters.kubernetes.cache.object_records import NodeRecord, PodRecord
from gpudev.adapters.kubernetes.objects.compute_resources import (
    CpuMemory,
    ResourceRequests,
    catalogue_resources,
    compute_share,
)
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
    for record in sorted(nodes, key=lambda node: node.name):
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
    usable = min(
        units - used_slots if gpu_type.is_cpu else units - used.gpus,
        (total.cpu_millis - used.cpu_millis) // unit_share.cpu_millis,
        (total.memory_mib - used.memory_mib) // unit_share.memory_mib,
    )
    return units - max(0, min(units, usable))


def _excess_requests(requests: ResourceRequests, unit_share: CpuMemory) -> ResourceRequests:
    """What a pod of ours requests beyond its units' share: the share was larger at launch, or a webhook added to it."""
    units = max(1, requests.gpus)
    return ResourceRequests(
        cpu_millis=max(0, requests.cpu_millis - units * unit_share.cpu_millis),
        memory_mib=max(0, requests.memory_mib - units * unit_share.memory_mib),
    )


# GPU type of a node. Our own label decides. Without it, the node's instance type decides through the catalogue. Without
# that, the name of its GPUs in labels of NVIDIA's feature discovery, Google's node pools or Karpenter decides.
#
# MIG slices and time-shared GPUs have no GPU type, whatever the machine is. Only our own label, which an operator sets
# on purpose, gives them one.


_WORD = re.compile(r"[a-z0-9]+")


def find_gpu_type(
    record: NodeRecord, catalogue: Catalogue, by_instance: Mapping[str, GpuType], label: str
) -> GpuType | str:
    """Its GPU type, or the reason why it has none. An invalid label is not overruled: an operator set it on purpose."""
    if record.type_label is not None:
        known = catalogue.get(record.type_label) or catalogue.get(record.type_label.lower())
        return known or f"no GPU type named {record.type_label!r} (its label {label})"
    product = record.product
    if product is not None and (sharing := _describe_sharing(product)) is not None:
        return f"its GPUs are {sharing} ({product}); set the label {label} to offer them anyway"
    if record.instance_type is not None and record.instance_type in by_instance:
        return by_instance[record.instance_type]
    if product is not None:
        known = find_gpu_type_by_product(product, catalogue.values())
        return known or f"no GPU type matches its GPU {product}, and it has no label {label}"
    if record.instance_type is None:
        return f"it has neither a label {label} nor an instance type"
    return f"no GPU type has its instance type {record.instance_type}"


def gpu_types_by_instance(catalogue: Catalogue) -> dict[str, GpuType]:
    """Omits an instance type that several GPU types share, unless exactly one of them is active. Also omits CPU types:
    the control plane's nodes have such instance types too, and only a label marks a node as one for users."""
    sharing: defaultdict[str, list[GpuType]] = defaultdict(list)
    for gpu_type in catalogue.values():
        sharing[gpu_type.instance_type].append(gpu_type)
    chosen = ([gpu_type for gpu_type in types if gpu_type.is_active] or types for types in sharing.values())
    return {types[0].instance_type: types[0] for types in chosen if len(types) == 1 and not types[0].is_cpu}


def find_gpu_type_by_product(product: str, types: Iterable[GpuType]) -> GpuType | None:
    """The type whose name's words are all in the product's name ("NVIDIA-A100-SXM4-80GB"); of several, the one with the
    most words. None: no type matches, or two match equally well."""
    words = _words(product)
    matching = [gpu_type for gpu_type in types if not gpu_type.is_cpu and _words(gpu_type.name) <= words]
    matching = [gpu_type for gpu_type in matching if gpu_type.is_active] or matching
    most = max((len(_words(gpu_type.name)) for gpu_type in matching), default=0)
    best = [gpu_type for gpu_type in matching if len(_words(gpu_type.name)) == most]
    return best[0] if len(best) == 1 else None


def _describe_sharing(product: str) -> str | None:
    words = _words(product)
    if "mig" in words:
        return "MIG slices"
    return "time-shared" if "shared" in words else None


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
