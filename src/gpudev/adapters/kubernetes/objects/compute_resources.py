"""What a pod takes of its node, by the scheduler's own sum: pure.

Init containers run one after the other before the others start, so a pod needs the largest of them or all of the
others together, whichever is more. Those with restartPolicy Always (sidecars) go on running: they count with the
others, and with every init container that comes after them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.adapters.kubernetes.quantities import parse_quantity

_MIB = 1024 * 1024


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
    """`spec`: a pod's."""
    running = NO_REQUESTS
    for container in spec.get("containers") or ():
        own = _sum_container_requests(container.get("resources"), gpu_resource)
        running = own if running is NO_REQUESTS else running + own
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
        own = _sum_container_requests(container.get("resources"), gpu_resource)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            starting = starting.maximum(sidecars)
        else:
            starting = starting.maximum(own + sidecars)
    return starting.maximum(running + sidecars)


def _with_pod_level_requests(
    summed: ResourceRequests, resources: Manifest | None, gpu_resource: str
) -> ResourceRequests:
    """Set for the pod as a whole, it replaces the sum of its containers."""
    named = {name for amounts in (resources or {}).values() if isinstance(amounts, dict) for name in amounts}
    stated = _sum_container_requests(resources, gpu_resource)
    return ResourceRequests(
        summed.gpus,
        stated.cpu_millis if "cpu" in named else summed.cpu_millis,
        stated.memory_mib if "memory" in named else summed.memory_mib,
    )


def _sum_container_requests(resources: Manifest | None, gpu_resource: str) -> ResourceRequests:
    """A limit without a request is a request."""
    if not resources:
        return NO_REQUESTS
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    gpus, cpu, memory = (
        requests[name] if name in requests else limits.get(name, "0") for name in (gpu_resource, "cpu", "memory")
    )
    return _parse_requests(gpus, cpu, memory)


@lru_cache(maxsize=4096)  # the same few amounts are asked for by thousands of pods
def _parse_requests(gpus: Any, cpu: Any, memory: Any) -> ResourceRequests:
    return ResourceRequests(
        gpus=_round_up(gpus), cpu_millis=_round_up(cpu, times=1000), memory_mib=_round_up(memory, times=1 / _MIB)
    )


def _round_up(amount: Any, times: float = 1) -> int:
    return math.ceil(round(parse_quantity(str(amount)) * times, 6))
