"""What a pod takes of its node, by the scheduler's own sum: pure.

Init containers run one after the other before the others start, so a pod needs the largest of them or all of the
others together, whichever is more. Those with restartPolicy Always (sidecars) go on running: they count with the
others, and with every init container that comes after them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudev.adapters.kubernetes.kinds import Manifest
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


def demand_of(spec: Manifest, gpu_resource: str) -> Demand:
    """`spec`: a pod's."""
    running = Demand()
    for container in spec.get("containers") or ():
        running += _requested(container.get("resources"), gpu_resource)
    sidecars, starting = Demand(), Demand()
    for container in spec.get("initContainers") or ():
        own = _requested(container.get("resources"), gpu_resource)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            starting = starting.or_more(sidecars)
        else:
            starting = starting.or_more(own + sidecars)
    summed = starting.or_more(running + sidecars)
    whole_pod = _amounts(spec.get("resources"))
    if whole_pod:  # set for the pod as a whole, it replaces the sum of its containers
        stated = _demand(whole_pod, gpu_resource)
        summed = Demand(
            summed.gpus,
            stated.cpu_millis if "cpu" in whole_pod else summed.cpu_millis,
            stated.memory_mib if "memory" in whole_pod else summed.memory_mib,
        )
    return summed + _demand(spec.get("overhead") or {}, gpu_resource)


def _requested(resources: Manifest | None, gpu_resource: str) -> Demand:
    return _demand(_amounts(resources), gpu_resource)


def _amounts(resources: Manifest | None) -> Mapping[str, Any]:
    """A limit without a request is a request."""
    resources = resources or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _demand(amounts: Mapping[str, Any], gpu_resource: str) -> Demand:
    if not amounts:
        return Demand()
    return Demand(
        gpus=_up(amounts.get(gpu_resource, "0")),
        cpu_millis=_up(amounts.get("cpu", "0"), times=1000),
        memory_mib=_up(amounts.get("memory", "0"), times=1 / _MIB),
    )


def _up(amount: Any, times: float = 1) -> int:
    return math.ceil(round(parse_quantity(str(amount)) * times, 6))
