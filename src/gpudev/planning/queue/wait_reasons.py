"""Wait reasons: why a request waits, in one sentence. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudev.domain.cluster import Node, ZoneConstraint
from gpudev.domain.ids import ReservationId, short_id
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_input import reservable_units


@dataclass(frozen=True, slots=True)
class BlockingReservation:
    """The reservation that must end before a request can start."""

    reservation_id: ReservationId
    waiting: bool = False
    """It has not started itself."""
    overdue: bool = False
    """Its time is over; it is being torn down."""


def explain_wait(
    request: Request, best: int, whole: int, ahead: int, blocker: BlockingReservation | None, *, moves: bool = False
) -> str:
    """`best`: the most free units on one node now; `whole`: free whole nodes; `ahead`: requests ahead; `moves`: its
    disk is moved to another zone for the start."""
    # A promised start is also kept from requests that now stand ahead of it.
    holders = "those ahead" if ahead else "others"
    parts = (
        []
        if request.zone_constraint is None
        else [_disk_move_note(request.zone_constraint) if moves else _disk_zone_note(request.zone_constraint)]
    )
    parts += [
        _gang_note(request, whole, holders) if request.node_count > 1 else _single_node_note(request, best, holders)
    ]
    if ahead:
        parts.append(f"{ahead} {'request' if ahead == 1 else 'requests'} ahead")
    if blocker is not None:
        parts.append(f"first fit when {_blocker_note(blocker)}")
    return "; ".join(parts)


def explain_no_start(request: Request, all_nodes: Sequence[Node], offering: Sequence[Node]) -> str:
    constraint = request.zone_constraint
    if constraint is not None and constraint.move_time is None:
        there = [
            [node for node in nodes if node.zone is None or node.zone in constraint.zones]
            for nodes in (all_nodes, offering)
        ]
        return f"{_disk_zone_note(constraint)}; {_explain_no_start_among(request, *there)}"
    return _explain_no_start_among(request, all_nodes, offering)


def _explain_no_start_among(request: Request, all_nodes: Sequence[Node], offering: Sequence[Node]) -> str:
    gpu_type = request.gpu_type
    if not all_nodes:
        return f"there is no {gpu_type} node"
    if not offering:
        if not any(node.ready for node in all_nodes):
            return f"no {gpu_type} node is ready"
        return f"no {gpu_type} node is open for new work{_closed_note(all_nodes)}"
    if request.node_count > 1:
        whole = sum(1 for node in offering if node.units == request.units_per_node == reservable_units(node))
        return f"waits for {request.node_count} whole free nodes; only {whole} {gpu_type} can be"
    unit = _unit_name(request)
    largest = max(node.units for node in offering)
    if largest < request.units_per_node:
        return f"needs {request.units_per_node} {unit} on one node; the largest {gpu_type} node ready has {largest}"
    best = max(reservable_units(node) for node in offering)
    return f"unmanaged use leaves at most {max(0, best)} of {request.units_per_node} {unit} on any {gpu_type} node"


def _closed_note(all_nodes: Sequence[Node]) -> str:
    """The operators' reasons, three at most."""
    reasons = list(dict.fromkeys(node.closed_because for node in all_nodes if node.closed_because))
    return f" ({'; '.join(reasons[:3])})" if reasons else ""


def _disk_zone_note(zone_constraint: ZoneConstraint) -> str:
    return f"waits for {_zone_names(zone_constraint)}, where disk {zone_constraint.disk_name!r} is"


def _disk_move_note(zone_constraint: ZoneConstraint) -> str:
    zones = _zone_names(zone_constraint)
    return f"disk {zone_constraint.disk_name!r} will be moved out of {zones}, where waiting would take longer"


def _zone_names(zone_constraint: ZoneConstraint) -> str:
    return f"zone{'s' * (len(zone_constraint.zones) > 1)} {' or '.join(sorted(zone_constraint.zones))}"


def _single_node_note(request: Request, best: int, holders: str) -> str:
    need = request.units_per_node
    if best >= need:
        are = "is" if need == 1 else "are"
        return f"{need} {_unit_name(request)} free on one {request.gpu_type} node {are} promised to {holders}"
    return f"{max(0, best)} of {need} {_unit_name(request)} free on any {request.gpu_type} node"


def _gang_note(request: Request, whole: int, holders: str) -> str:
    need = f"waits for {request.node_count} whole free nodes"
    if whole >= request.node_count:
        return f"{need}; those free now are promised to {holders}"
    return f"{need}; {whole} of {request.node_count} free now"


def _blocker_note(blocker: BlockingReservation) -> str:
    name = f"reservation {short_id(blocker.reservation_id)}"
    if blocker.waiting:
        return f"{name}, which is ahead, ends"
    return f"{name}, which is over, is torn down" if blocker.overdue else f"{name} ends"


def _unit_name(request: Request) -> str:
    unit = "slot" if request.slots else "GPU"
    return unit if request.units_per_node == 1 else f"{unit}s"
