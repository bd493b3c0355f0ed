"""How much of a node's processors and memory a dev server gets: pure. In proportion to its GPUs (or its slot of a CPU
node), so that neighbours never compete for what the other was given.

A part of every node is left to what else runs there: the kubelet, the network, the device plugin, exporters. Where such
daemons ask for more, they get more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpudev.adapters.kubernetes.objects.compute_resources import NO_REQUESTS, ResourceRequests
from gpudev.adapters.kubernetes.quantities import parse_quantity
from gpudev.domain.gpu import GpuType

_RESERVED_CPU_FRACTION = 0.10
_RESERVED_MEMORY_FRACTION = 0.05
_MARGIN_FRACTION = 0.02
"""Where what stays takes more than that: for what comes and goes beside it."""
_BYTES_PER_MIB = 1024 * 1024
_MIN_CPU_MILLIS = 100
_MIN_MEMORY_MIB = 128


@dataclass(frozen=True, slots=True)
class CpuMemory:
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
    def shm_size(self) -> str:
        """For /dev/shm. It counts as the dev server's memory; half of it is more than data loaders were seen to use,
        and never all of what the processes need."""
        return f"{self.memory_mib // 2}Mi"


def catalogue_resources(gpu_type: GpuType) -> CpuMemory:
    """By the catalogue: where the node itself has not said."""
    return CpuMemory(gpu_type.cpus * 1000, gpu_type.memory_gb * 1024)


def parse_allocatable(allocatable: Mapping[str, str]) -> CpuMemory | None:
    """By the node's own words; None where they make no sense."""
    try:
        cpus, memory = parse_quantity(allocatable["cpu"]), parse_quantity(allocatable["memory"])
    except (KeyError, ValueError):
        return None
    return CpuMemory(round(cpus * 1000), int(memory) // _BYTES_PER_MIB)


def compute_share(
    room: CpuMemory, units: int, total_units: int, daemon_requests: ResourceRequests = NO_REQUESTS
) -> CpuMemory:
    """`units` of the node's `of` GPUs or slots. `staying`: what runs there beside all dev servers and never goes."""
    share = min(1.0, units / max(1, total_units))
    cpu = min(1 - _RESERVED_CPU_FRACTION, 1 - _MARGIN_FRACTION - daemon_requests.cpu_millis / max(1, room.cpu_millis))
    memory = min(
        1 - _RESERVED_MEMORY_FRACTION, 1 - _MARGIN_FRACTION - daemon_requests.memory_mib / max(1, room.memory_mib)
    )
    return CpuMemory(
        cpu_millis=max(_MIN_CPU_MILLIS, int(room.cpu_millis * cpu * share)),
        memory_mib=max(_MIN_MEMORY_MIB, int(room.memory_mib * memory * share)),
    )


def parse_whole_node_resources(allocatable: Mapping[str, str], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """What a node has of `names`, in its own words; none of what it has nothing of."""
    return tuple((name, allocatable[name]) for name in names if _is_positive(allocatable.get(name)))


def grant_whole_node_resources(
    offered: tuple[tuple[str, str], ...], units: int, total_units: int
) -> tuple[tuple[str, str], ...]:
    """For who has all of the node's `of` GPUs. Anybody else has neighbours, and it cannot be shared with them."""
    return offered if 0 < total_units <= units else ()


def _is_positive(text: str | None) -> bool:
    try:
        return text is not None and parse_quantity(text) > 0
    except ValueError:
        return False
