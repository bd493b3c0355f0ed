"""Admission: can this request ever run, and may this user submit it? Decided before anything is written, from the
catalogue, the nodes and the limits. The queue decides the start; a full cluster is not a reason to reject.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from gpudev.domain.cluster import Catalogue, GpuType, Node
from gpudev.settings import LimitSettings

_MIN_HOURS = 0.001
"""A few seconds: less than any dev server takes to start."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    gpu_type: str | None
    """None: the only type with nodes."""
    gpu_count: int
    duration_hours: float | None = None
    """None: the default."""


@dataclass(frozen=True, slots=True)
class UserUsage:
    """The user's queued requests, and GPUs of all queued, preparing and active reservations."""

    queued: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    gpu_type: str
    gpu_count: int
    node_count: int
    duration: timedelta


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    field: str
    """The invalid field, by its name on the wire."""
    reason: str
    limit: bool = False
    """True: a limit of this user is reached; the same request may succeed later."""


def admit_request(
    request: AdmissionRequest,
    catalogue: Catalogue,
    nodes: Sequence[Node],
    limits: LimitSettings,
    usage: UserUsage,
    *,
    fixed_cluster: bool = False,
) -> Admitted | NotAdmitted:
    """`fixed_cluster`: no nodes are ever added (one machine), so a request that exceeds them can never run."""
    gpu_type = _choose_type(request, catalogue, nodes, fixed_cluster=fixed_cluster)
    if isinstance(gpu_type, NotAdmitted):
        return gpu_type
    duration = _check_duration(request.duration_hours, limits)
    if isinstance(duration, NotAdmitted):
        return duration
    refused = _check_count(gpu_type, request.gpu_count, _possible_counts(gpu_type, nodes, fixed_cluster=fixed_cluster))
    if refused is None and fixed_cluster:
        refused = _check_fixed_cluster(gpu_type, request.gpu_count, nodes)
    if refused is None:
        refused = _check_limits(request.gpu_count, limits, usage)
    if refused is not None:
        return refused
    node_count = gpu_type.node_count(request.gpu_count)
    return Admitted(gpu_type.name, request.gpu_count, node_count, duration)


def _choose_type(
    request: AdmissionRequest, catalogue: Catalogue, nodes: Sequence[Node], *, fixed_cluster: bool
) -> GpuType | NotAdmitted:
    offered = [name for name, gpu_type in catalogue.items() if gpu_type.is_active]
    if request.gpu_type is not None:
        known = _find_type(request.gpu_type, catalogue)
        if known is not None and known.is_active:
            return known
        what = "unknown" if known is None else "not offered at present"
        present = {node.gpu_type for node in nodes}
        available = [name for name in offered if name in present] if fixed_cluster else offered
        return NotAdmitted("gpu_type", f"GPU type {request.gpu_type[:50]!r} is {what}; available: {_list(available)}")
    wants_cpu = request.gpu_count == 0
    kind = "CPU" if wants_cpu else "GPU"
    of_kind = [name for name in offered if catalogue[name].is_cpu is wants_cpu]
    with_nodes = sorted({node.gpu_type for node in nodes}.intersection(of_kind))
    if len(with_nodes) == 1:
        return catalogue[with_nodes[0]]
    if with_nodes:
        return NotAdmitted("gpu_type", f"several {kind} types have nodes, so name one of {_list(with_nodes)}")
    return NotAdmitted("gpu_type", f"no {kind} type has nodes right now, so name one of {_list(of_kind)}")


def _find_type(name: str, catalogue: Catalogue) -> GpuType | None:
    """In any case: people write H100."""
    folded = name.casefold()
    return catalogue.get(name) or next((each for each in catalogue.values() if each.name.casefold() == folded), None)


def _possible_counts(gpu_type: GpuType, nodes: Sequence[Node], *, fixed_cluster: bool) -> tuple[int, ...]:
    """The counts that this cluster can ever give; without a node of the type, those that the type allows."""
    allowed = gpu_type.allowed_counts()
    if not fixed_cluster:
        return allowed
    return tuple(n for n in allowed if _check_fixed_cluster(gpu_type, n, nodes) is None) or allowed


def _check_duration(hours: float | None, limits: LimitSettings) -> timedelta | NotAdmitted:
    hours = limits.default_hours if hours is None else hours
    if not math.isfinite(hours):
        return NotAdmitted("duration_hours", "the duration must be a number of hours")
    if hours <= 0:
        return NotAdmitted("duration_hours", "the duration must be more than 0 hours")
    if hours < _MIN_HOURS:
        return NotAdmitted("duration_hours", f"{hours:g} hours is too short; the least is {_MIN_HOURS:g}")
    if hours > limits.max_hours:
        return NotAdmitted(
            "duration_hours",
            f"{hours:g} hours is too long; the most is {limits.max_hours:g}, and a running one can be extended",
        )
    return timedelta(hours=hours)


def _check_count(gpu_type: GpuType, count: int, possible: Sequence[int]) -> NotAdmitted | None:
    """Errors name only the `possible` counts. An allowed count that is not among them gets its reason later."""
    if count in gpu_type.allowed_counts():
        return None
    if gpu_type.is_cpu:
        return NotAdmitted("gpu_count", f"{gpu_type.name} has no GPUs; ask for 0")
    counts = _list(str(n) for n in possible)
    if count == 0:
        return NotAdmitted(
            "gpu_count", f"{gpu_type.name} is a GPU type; ask for {counts} GPUs, or name a CPU type for 0"
        )
    if count > gpu_type.max_gpus_per_reservation:
        return NotAdmitted(
            "gpu_count",
            f"{count} GPUs are more than {gpu_type.name} offers: {_most_gpus_note(gpu_type, max(possible))}",
        )
    if count > gpu_type.max_gpus:
        whole = f"above {gpu_type.max_gpus} GPUs only whole nodes can be"
        return NotAdmitted("gpu_count", f"{count} GPUs of {gpu_type.name} cannot be had: {whole}; ask for {counts}")
    return NotAdmitted("gpu_count", f"invalid GPU count {count} for {gpu_type.name}; ask for {counts}")


def _most_gpus_note(gpu_type: GpuType, most: int) -> str:
    nodes = gpu_type.node_count(most)
    if nodes > 1:
        return f"at most {most}, as {nodes} whole nodes of {gpu_type.max_gpus}"
    return f"at most {most}, all of one node"


def _check_fixed_cluster(gpu_type: GpuType, count: int, nodes: Sequence[Node]) -> NotAdmitted | None:
    """Only missing nodes count: nodes that are down may come back, and unmanaged use may end."""
    units = [node.units for node in nodes if node.gpu_type == gpu_type.name]
    if not units:
        return NotAdmitted("gpu_type", f"there is no {gpu_type.name} node here; there is {_present_types(nodes)}")
    needed_nodes = gpu_type.node_count(count)
    if needed_nodes > 1:
        whole = sum(1 for n in units if n == gpu_type.max_gpus)
        if whole < needed_nodes:
            need = f"{count} GPUs take {needed_nodes} whole {gpu_type.name} nodes of {gpu_type.max_gpus}"
            return NotAdmitted("gpu_count", f"{need}; there {'is' if whole == 1 else 'are'} {whole} here")
        return None
    if count > max(units):
        return NotAdmitted(
            "gpu_count", f"{count} GPUs fit on no node here; the largest {gpu_type.name} node has {max(units)}"
        )
    return None


def _check_limits(count: int, limits: LimitSettings, usage: UserUsage) -> NotAdmitted | None:
    if limits.max_queued_per_user is not None and usage.queued >= limits.max_queued_per_user:
        return NotAdmitted(
            "gpu_count",
            f"you have {usage.queued} waiting requests and may have {limits.max_queued_per_user}; cancel one first",
            limit=True,
        )
    most = limits.max_gpus_per_user
    if most is None or usage.gpus + count <= most:
        return None
    if count > most:
        return NotAdmitted("gpu_count", f"{count} GPUs are more than the {most} one user may have at once")
    return NotAdmitted(
        "gpu_count",
        f"you have reserved or requested {usage.gpus} GPUs; the limit is {most}, so {most - usage.gpus} are left",
        limit=True,
    )


def _present_types(nodes: Sequence[Node]) -> str:
    return _list(sorted({node.gpu_type for node in nodes})) or "no node at all"


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
