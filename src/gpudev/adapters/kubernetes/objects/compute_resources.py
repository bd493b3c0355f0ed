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
class Demand:
    gpus: int = 0
    cpu_millis: int = 0
    memory_mib: int = 0

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(self.gpus + other.gpus, self.cpu_millis + other.cpu_millis, self.memory_mib + other.memory_mib)

    def or_more(self, other: "Demand") -> "Demand":
        return Demand(
            max(self.gpus, other.gpus),
            max(self.cpu_millis, other.cpu_millis),
            max(self.memory_mib, other.memory_mib),
        )


NOTHING = Demand()


def demand_of(spec: Manifest, gpu_resource: str) -> Demand:
    """`spec`: a pod's."""
    running = NOTHING
    for container in spec.get("containers") or ():
        own = _requested(container.get("resources"), gpu_resource)
        running = own if running is NOTHING else running + own
    if "initContainers" in spec:
        running = _with_init_containers(running, spec["initContainers"] or (), gpu_resource)
    if "resources" in spec:
        running = _as_stated(running, spec["resources"], gpu_resource)
    if "overhead" in spec:
        running += _requested({"requests": spec["overhead"]}, gpu_resource)
    return running


def _with_init_containers(running: Demand, init_containers: Iterable[Manifest], gpu_resource: str) -> Demand:
    sidecars, starting = NOTHING, NOTHING
    for container in init_containers:
        own = _requested(container.get("resources"), gpu_resource)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            starting = starting.or_more(sidecars)
        else:
            starting = starting.or_more(own + sidecars)
    return starting.or_more(running + sidecars)


def _as_stated(summed: Demand, resources: Manifest | None, gpu_resource: str) -> Demand:
    """Set for the pod as a whole, it replaces the sum of its containers."""
    named = {name for amounts in (resources or {}).values() if isinstance(amounts, dict) for name in amounts}
    stated = _requested(resources, gpu_resource)
    return Demand(
        summed.gpus,
        stated.cpu_millis if "cpu" in named else summed.cpu_millis,
        stated.memory_mib if "memory" in named else summed.memory_mib,
    )


def _requested(resources: Manifest | None, gpu_resource: str) -> Demand:
    """A limit without a request is a request."""
    if not resources:
        return NOTHING
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    gpus, cpu, memory = (
        requests[name] if name in requests else limits.get(name, "0") for name in (gpu_resource, "cpu", "memory")
    )
    return _demand(gpus, cpu, memory)


@lru_cache(maxsize=4096)  # the same few amounts are asked for by thousands of pods
def _demand(gpus: Any, cpu: Any, memory: Any) -> Demand:
    return Demand(gpus=_up(gpus), cpu_millis=_up(cpu, times=1000), memory_mib=_up(memory, times=1 / _MIB))


def _up(amount: Any, times: float = 1) -> int:
    return math.ceil(round(parse_quantity(str(amount)) * times, 6))
