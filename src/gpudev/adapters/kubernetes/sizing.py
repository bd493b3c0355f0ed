"""How much of a node's processors and memory a dev server gets: pure. In proportion to its GPUs (or its slot of a CPU
node), so that neighbours never compete for what the other was given.

A part of every node is left to what else runs there: the kubelet, the network, the device plugin, exporters. Where such
daemons ask for more, they get more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpudev.adapters.kubernetes.objects.compute_resources import NOTHING, Demand
from gpudev.adapters.kubernetes.quantities import parse_quantity
from gpudev.domain.gpu import GpuType

_KEPT_OF_CPU = 0.10
_KEPT_OF_MEMORY = 0.05
_KEPT_BESIDE = 0.02
"""Where what stays takes more than that: for what comes and goes beside it."""
_MIB = 1024 * 1024
_LEAST_CPU_MILLIS = 100
_LEAST_MEMORY_MIB = 128


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has for pods, or what one pod gets of it."""

    cpu_millis: int
    memory_mib: int

    @property
    def cpu(self) -> str:
        return f"{self.cpu_millis}m"

    @property
    def memory(self) -> str:
        return f"{self.memory_mib}Mi"

    @property
    def shared_memory(self) -> str:
        """For /dev/shm. It counts as the dev server's memory; half of it is more than data loaders were seen to use,
        and never all of what the processes need."""
        return f"{self.memory_mib // 2}Mi"


def room_of_type(gpu_type: GpuType) -> Room:
    """By the catalogue: where the node itself has not said."""
    return Room(gpu_type.cpus * 1000, gpu_type.memory_gb * 1024)


def room_of_node(allocatable: Mapping[str, str]) -> Room | None:
    """By the node's own words; None where they make no sense."""
    try:
        cpus, memory = parse_quantity(allocatable["cpu"]), parse_quantity(allocatable["memory"])
    except (KeyError, ValueError):
        return None
    return Room(round(cpus * 1000), int(memory) // _MIB)


def share_of(room: Room, units: int, of: int, staying: Demand = NOTHING) -> Room:
    """`units` of the node's `of` GPUs or slots. `staying`: what runs there beside all dev servers and never goes."""
    share = min(1.0, units / max(1, of))
    cpu = min(1 - _KEPT_OF_CPU, 1 - _KEPT_BESIDE - staying.cpu_millis / max(1, room.cpu_millis))
    memory = min(1 - _KEPT_OF_MEMORY, 1 - _KEPT_BESIDE - staying.memory_mib / max(1, room.memory_mib))
    return Room(
        cpu_millis=max(_LEAST_CPU_MILLIS, int(room.cpu_millis * cpu * share)),
        memory_mib=max(_LEAST_MEMORY_MIB, int(room.memory_mib * memory * share)),
    )


def whole_only(allocatable: Mapping[str, str], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """What a node has of `names`, in its own words; none of what it has nothing of."""
    return tuple((name, allocatable[name]) for name in names if _is_some(allocatable.get(name)))


def all_of_node(offered: tuple[tuple[str, str], ...], units: int, of: int) -> tuple[tuple[str, str], ...]:
    """For who has all of the node's `of` GPUs. Anybody else has neighbours, and it cannot be shared with them."""
    return offered if 0 < of <= units else ()


def _is_some(text: str | None) -> bool:
    try:
        return text is not None and parse_quantity(text) > 0
    except ValueError:
        return False
