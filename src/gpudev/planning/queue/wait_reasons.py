"""Why a request waits, in words. Decides nothing; it only tells what the plan already knows."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudev.domain.cluster import Anchor, Node
from gpudev.domain.ids import ReservationId, short_id
from gpudev.planning.facts import lasting_units
from gpudev.planning.queue.plan import Request


@dataclass(frozen=True, slots=True)
class Ending:
    """What must end before a request can start."""

    reservation_id: ReservationId
    waiting: bool = False
    """It has not begun itself."""
    overdue: bool = False
    """Its time is over; it is being cleared away."""


def why_not_now(
    request: Request, best: int, whole: int, ahead: int, ending: Ending | None, *, moves: bool = False
) -> str:
    """`best`: the most units free on one node now; `whole`: the nodes that are free altogether; `ahead`: how many
    wait before it; `moves`: its disk is taken out of its zone then."""
    # A place that was told is kept also from those who now stand before its owner.
    to_whom = "those ahead" if ahead else "others"
    parts = [] if request.anchor is None else [_moving(request.anchor) if moves else _staying(request.anchor)]
    parts += [_gang_now(request, whole, to_whom) if request.node_count > 1 else _single_now(request, best, to_whom)]
    if ahead:
        parts.append(f"{ahead} {'request' if ahead == 1 else 'requests'} ahead")
    if ending is not None:
        parts.append(f"first fit when {_when(ending)}")
    return "; ".join(parts)


def why_never(request: Request, known: Sequence[Node], offering: Sequence[Node]) -> str:
    anchor = request.anchor
    if anchor is not None and anchor.move is None:
        there = [[one for one in some if one.zone is None or one.zone in anchor.zones] for some in (known, offering)]
        return f"{_staying(anchor)}; {_why_never_among(request, *there)}"
    return _why_never_among(request, known, offering)


def _why_never_among(request: Request, known: Sequence[Node], offering: Sequence[Node]) -> str:
    gpu_type = request.gpu_type
    if not known:
        return f"there is no {gpu_type} node"
    if not offering:
        if not any(node.ready for node in known):
            return f"no {gpu_type} node is ready"
        return f"no {gpu_type} node is open for new work{_closed(known)}"
    if request.node_count > 1:
        whole = sum(1 for node in offering if node.units == request.units_per_node == lasting_units(node))
        return f"waits for {request.node_count} whole free nodes; only {whole} {gpu_type} can be"
    unit = _unit(request)
    largest = max(node.units for node in offering)
    if largest < request.units_per_node:
        return f"needs {request.units_per_node} {unit} on one node; the largest {gpu_type} node ready has {largest}"
    best = max(lasting_units(node) for node in offering)
    return f"foreign work leaves at most {max(0, best)} of {request.units_per_node} {unit} on any {gpu_type} node"


def _closed(known: Sequence[Node]) -> str:
    """What operators say about it; a few of many nodes are enough."""
    said = list(dict.fromkeys(node.closed_because for node in known if node.closed_because))
    return f" ({'; '.join(said[:3])})" if said else ""


def _staying(anchor: Anchor) -> str:
    return f"waits for {_zone(anchor)}, where disk {anchor.disk_name!r} is"


def _moving(anchor: Anchor) -> str:
    return f"disk {anchor.disk_name!r} will be moved out of {_zone(anchor)}, where waiting would take longer"


def _zone(anchor: Anchor) -> str:
    return f"zone{'s' * (len(anchor.zones) > 1)} {' or '.join(sorted(anchor.zones))}"


def _single_now(request: Request, best: int, to_whom: str) -> str:
    need = request.units_per_node
    if best >= need:
        are = "is" if need == 1 else "are"
        return f"{need} {_unit(request)} free on one {request.gpu_type} node {are} promised to {to_whom}"
    return f"{max(0, best)} of {need} {_unit(request)} free on any {request.gpu_type} node"


def _gang_now(request: Request, whole: int, to_whom: str) -> str:
    need = f"waits for {request.node_count} whole free nodes"
    if whole >= request.node_count:
        return f"{need}; those free now are promised to {to_whom}"
    return f"{need}; {whole} of {request.node_count} free now"


def _when(ending: Ending) -> str:
    name = f"reservation {short_id(ending.reservation_id)}"
    if ending.waiting:
        return f"{name}, which is ahead, has run"
    return f"{name}, which is over, is cleared away" if ending.overdue else f"{name} ends"


def _unit(request: Request) -> str:
    unit = "slot" if request.slots else "GPU"
    return unit if request.units_per_node == 1 else f"{unit}s"
