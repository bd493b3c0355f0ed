"""CPU, memory and GPUs: quantities, pod requests, a dev server's share of its node. Pure.

Requests are summed as the scheduler does. Init containers run one after the other before the others start, so a pod
needs the larger of two: the largest init container, or all other containers together. Init containers with
restartPolicy Always (sidecars) keep running: they count with the other containers, and with every later init container.

A dev server gets CPU and memory in proportion to its GPUs (or its slot of a CPU node), so that dev servers on one node
never compete. A part of every node is left for what else runs there: kubelet, network, device plugin, exporters. Where
such daemons request more than that, they get more.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.domain.cluster import GpuType

# The whole grammar of Kubernetes quantities ("250m", "64Gi", "1e3"), because any pod may use it.
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_FACTORS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=4096)  # thousands of pods have the same few amounts
def parse_quantity(text: str) -> float:
    """Raises ValueError for an invalid quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid quantity {text!r} (expected e.g. 250m or 64Gi)")
    number, exponent, suffix = match.groups()
    value = float(number)
    if exponent is not None:
        return value * 10.0 ** int(exponent)
    return value * _FACTORS[suffix] if suffix else value


_BYTES_PER_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ResourceRequests:
    gpus: int = 0
    cpu_millis: int = 0
    memory_mib: int = 0

    def __add__(self, other: "ResourceRequests") -> "ResourceRequests":
        return ResourceRequests(
            self.gpus + other.gpus, self.cpu_millis + other.cpu_millis, self.memory_mib + other.memory_mib
        )

    def maximum(self, other: "ResourceRequests") -> "ResourceRequests":
        return ResourceRequests(
            max(self.gpus, other.gpus),
            max(self.cpu_millis, other.cpu_millis),
            max(self.memory_mib, other.memory_mib),
        )


NO_REQUESTS = ResourceRequests()


def sum_pod_requests(spec: Manifest, gpu_resource: str) -> ResourceRequests:
    """`spec`: of a pod."""
    running = NO_REQUESTS
    for container in spec.get("containers") or ():
        requests = _sum_container_requests(container.get("resources"), gpu_resource)
        running = requests if running is NO_REQUESTS else running + requests
    if "initContainers" in spec:
        running = _with_init_containers(running, spec["initContainers"] or (), gpu_resource)
    if "resources" in spec:
        running = _with_pod_level_requests(running, spec["resources"], gpu_resource)
    if "overhead" in spec:
        running += _sum_container_requests({"requests": spec["overhead"]}, gpu_resource)
    return running


def _with_init_containers(
    running: ResourceRequests, init_containers: Iterable[Manifest], gpu_resource: str
) -> ResourceRequests:
    sidecars, starting = NO_REQUESTS, NO_REQUESTS
    for container in init_containers:
        requests = _sum_container_requests(container.get("resources"), gpu_resource)
        if container.get("restartPolicy") == "Always":
            sidecars += requests
            starting = starting.maximum(sidecars)
        else:
            starting = starting.maximum(requests + sidecars)
    return starting.maximum(running + sidecars)


def _with_pod_level_requests(
    summed: ResourceRequests, resources: Manifest | None, gpu_resource: str
) -> ResourceRequests:
    """Requests of the pod as a whole replace the sum of its containers."""
    named = {name for amounts in (resources or {}).values() if isinstance(amounts, dict) for name in amounts}
    stated = _sum_container_requests(resources, gpu_resource)
    return ResourceRequests(
        summed.gpus,
        stated.cpu_millis if "cpu" in named else summed.cpu_millis,
        stated.memory_mib if "memory" in named else summed.memory_mib,
    )


def _sum_container_requests(resources: Manifest | None, gpu_resource: str) -> ResourceRequests:
    """A limit without a request counts as a request."""
    if not resources:
        return NO_REQUESTS
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    gpus, cpu, memory = (
        requests[name] if name in requests else limits.get(name, "0") for name in (gpu_resource, "cpu", "memory")
    )
    return _parse_requests(gpus, cpu, memory)


@lru_cache(maxsize=4096)  # thousands of pods have the same few amounts
def _parse_requests(gpus: Any, cpu: Any, memory: Any) -> ResourceRequests:
    return ResourceRequests(
        gpus=_round_up(gpus),
        cpu_millis=_round_up(cpu, times=1000),
        memory_mib=_round_up(memory, times=1 / _BYTES_PER_MIB),
    )


def _round_up(amount: Any, times: float = 1) -> int:
    return math.ceil(round(parse_quantity(str(amount)) * times, 6))


# A dev server's share of its node.


_RESERVED_CPU_FRACTION = 0.10
_RESERVED_MEMORY_FRACTION = 0.05
_MARGIN_FRACTION = 0.02
"""Kept free for short-lived pods where daemons request more than the fractions above."""
_MIN_CPU_MILLIS = 100
_MIN_MEMORY_MIB = 128


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """CPU and memory that a node has for pods, or that one pod gets."""

    cpu_millis: int
    memory_mib: int

    @property
    def cpu(self) -> str:
        return f"{self.cpu_millis}m"

    @property
    def memory(self) -> str:
        return f"{self.memory_mib}Mi"

    @property
    def shm_size(self) -> str:
        """Of /dev/shm, which counts as the dev server's memory. Half of the memory is more than data loaders used in
        practice, and leaves the other half for processes."""
        return f"{self.memory_mib // 2}Mi"


def catalogue_resources(gpu_type: GpuType) -> CpuMemory:
    """From the catalogue, where the node does not report them."""
    return CpuMemory(gpu_type.cpus * 1000, gpu_type.memory_gb * 1024)


def parse_allocatable(allocatable: Mapping[str, str]) -> CpuMemory | None:
    """As the node reports it; None where that is missing or invalid."""
    try:
        cpus, memory = parse_quantity(allocatable["cpu"]), parse_quantity(allocatable["memory"])
    except (KeyError, ValueError):
        return None
    return CpuMemory(round(cpus * 1000), int(memory) // _BYTES_PER_MIB)


def compute_share(
    node: CpuMemory, units: int, total_units: int, daemon_requests: ResourceRequests = NO_REQUESTS
) -> CpuMemory:
    """`units` of the node's `total_units` GPUs or slots. `daemon_requests`: of pods that always run on the node."""
    share = min(1.0, units / max(1, total_units))
    cpu = min(1 - _RESERVED_CPU_FRACTION, 1 - _MARGIN_FRACTION - daemon_requests.cpu_millis / max(1, node.cpu_millis))
    memory = min(
        1 - _RESERVED_MEMORY_FRACTION, 1 - _MARGIN_FRACTION - daemon_requests.memory_mib / max(1, node.memory_mib)
    )
    return CpuMemory(
        cpu_millis=max(_MIN_CPU_MILLIS, int(node.cpu_millis * cpu * share)),
        memory_mib=max(_MIN_MEMORY_MIB, int(node.memory_mib * memory * share)),
    )


def parse_whole_node_resources(allocatable: Mapping[str, str], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(resource, amount) for each of `names` that the node has, with the amount as the node writes it."""
    return tuple((name, allocatable[name]) for name in names if _is_positive(allocatable.get(name)))


def grant_whole_node_resources(
    offered: tuple[tuple[str, str], ...], units: int, total_units: int
) -> tuple[tuple[str, str], ...]:
    """Everything offered for a dev server with all `total_units` GPUs of the node. Other dev servers get nothing,
    because these resources cannot be shared."""
    return offered if 0 < total_units <= units else ()


def _is_positive(text: str | None) -> bool:
    try:
        return text is not None and parse_quantity(text) > 0
    except ValueError:
        return False
