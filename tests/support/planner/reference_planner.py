"""The planner's rules once more, written to be read and not to be fast: every request looks at every node and every
moment. The real planner must say exactly the same; its clever index is thereby checked against none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from gpudev.domain.cluster import Node
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.plan import Request
from support.planner.situations import Situation
from support.planner.whole_plan import Plan

Planner = Callable[[Situation], Plan]


@dataclass(frozen=True)
class Slot:
    """Somebody has so many units of a node from then until then."""

    who: ReservationId
    node: str
    units: int
    begins: datetime
    ends: datetime


def slots_held(situation: Situation) -> list[Slot]:
    slots = []
    for holding in situation.holdings:
        ends = holding.until
        if ends is None or ends <= situation.now:
            ends = situation.now + situation.margin
        slots += [
            Slot(holding.reservation_id, share.node, share.units, situation.now, ends) for share in holding.shares
        ]
    return slots


def slots_planned(situation: Situation, plan: Plan) -> list[Slot]:
    """Those of everybody who starts or has a planned start."""
    requests = {request.reservation_id: request for request in situation.queue}
    slots = []
    for start in plan.starts:
        ends = situation.now + requests[start.reservation_id].duration
        slots += [Slot(start.reservation_id, s.node, s.units, situation.now, ends) for s in start.shares]
    for wait in plan.waits:
        request = requests[wait.reservation_id]
        if wait.estimate.latest is not None:
            ends = wait.estimate.latest + request.duration
            slots += [
                Slot(wait.reservation_id, n, request.units_per_node, wait.estimate.latest, ends)
                for n in wait.estimate.nodes
            ]
    return slots


def lasting(node: Node) -> int:
    return node.units - max(node.foreign_units, len(node.foreign_indices))


def free_at(node: Node, slots: Sequence[Slot], moment: datetime) -> int:
    return lasting(node) - sum(s.units for s in slots if s.node == node.name and s.begins <= moment < s.ends)


def fits(node: Node, slots: Sequence[Slot], units: int, begins: datetime, long: timedelta) -> bool:
    """Whether the units are free all the time: at the beginning, and whenever somebody else begins meanwhile."""
    if not node.offers:
        return False
    moments = [begins, *(s.begins for s in slots if s.node == node.name and begins < s.begins < begins + long)]
    return all(free_at(node, slots, moment) >= units for moment in moments)


def is_home(node: Node, request: Request) -> bool:
    return request.zone_constraint is None or node.zone is None or node.zone in request.zone_constraint.zones


def earliest(situation: Situation, slots: Sequence[Slot], request: Request) -> tuple[datetime, tuple[str, ...]] | None:
    """At home, or elsewhere where it is ready earlier though its disk has to be moved first."""
    home = _earliest(situation, slots, request, [node for node in situation.nodes if is_home(node, request)])
    if request.zone_constraint is None or request.zone_constraint.move_time is None:
        return home
    away = _earliest(situation, slots, request, situation.nodes)
    if away is not None and (home is None or away[0] + request.zone_constraint.move_time < home[0]):
        return away
    return home


def _earliest(
    situation: Situation, slots: Sequence[Slot], request: Request, among: Sequence[Node]
) -> tuple[datetime, tuple[str, ...]] | None:
    nodes = [node for node in among if node.gpu_type == request.gpu_type]
    if request.node_count > 1:
        nodes = [node for node in nodes if node.units == request.units_per_node]
    for moment in sorted({situation.now, *(slot.ends for slot in slots)}):
        fitting = [n for n in nodes if fits(n, slots, request.units_per_node, moment, request.duration)]
        if len(fitting) >= request.node_count:
            best = sorted(fitting, key=lambda n: (free_at(n, slots, moment), n.name))
            return moment, tuple(sorted(node.name for node in best[: request.node_count]))
    return None


def reference_starts(situation: Situation) -> dict[ReservationId, tuple[datetime, tuple[str, ...]] | None]:
    """Everybody's start and nodes; None: never."""
    slots = slots_held(situation)
    found = {}
    for request in situation.ordered():
        place = earliest(situation, slots, request)
        found[request.reservation_id] = place
        if place is not None:
            begins, names = place
            ends = begins + request.duration
            slots += [Slot(request.reservation_id, n, request.units_per_node, begins, ends) for n in names]
    return found


def places_now(
    situation: Situation, slots: Sequence[Slot], request: Request, *, away: bool = False
) -> list[tuple[str, ...]]:
    """All ways to start it now beside the given slots, where its disk is or, `away`, anywhere."""
    nodes = [n for n in situation.nodes if n.gpu_type == request.gpu_type and (away or is_home(n, request))]
    if request.node_count > 1:
        nodes = [node for node in nodes if node.units == request.units_per_node]
    names = [n.name for n in nodes if fits(n, slots, request.units_per_node, situation.now, request.duration)]
    return list(combinations(sorted(names), request.node_count))
