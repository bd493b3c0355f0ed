"""Planners that are wrong on purpose, each in the one way that a property must catch."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpudev.domain.cluster import NodeShare
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.plan import Queued, Request, Start
from support.planner.plan_properties import begins, real_planner
from support.planner.situations import Situation
from support.planner.whole_plan import Plan


def forgets_what_is_held(situation: Situation) -> Plan:
    return real_planner(replace(situation, holdings=()))


def counts_on_totals(situation: Situation) -> Plan:
    """Offers a type's GPUs as if they were one node's."""
    plan = real_planner(situation)
    requests = {request.reservation_id: request for request in situation.queue}
    types = {request.gpu_type for request in situation.queue}
    room = {t: sum(n.units - n.foreign_units for n in situation.nodes if n.offers and n.gpu_type == t) for t in types}
    names = {node.name: node.gpu_type for node in situation.nodes if node.offers}
    for holding in situation.holdings:
        for share in holding.shares:
            if names.get(share.node) in room:
                room[names[share.node]] -= share.units
    starts, waits = list(plan.starts), []
    for start in plan.starts:
        request = requests[start.reservation_id]
        room[request.gpu_type] -= request.units_per_node * request.node_count
    for wait in plan.waits:
        request = requests[wait.reservation_id]
        if wait.estimate.latest is not None and request.units_per_node * request.node_count <= room[request.gpu_type]:
            room[request.gpu_type] -= request.units_per_node * request.node_count
            starts.append(_start_there(request, wait))
        else:
            waits.append(wait)
    return Plan(tuple(starts), tuple(waits))


def numbers_gpus_from_zero(situation: Situation) -> Plan:
    plan = real_planner(situation)
    return replace(
        plan,
        starts=tuple(
            replace(s, shares=tuple(replace(x, gpu_indices=tuple(range(len(x.gpu_indices)))) for x in s.shares))
            for s in plan.starts
        ),
    )


def puts_a_gang_on_one_node(situation: Situation) -> Plan:
    plan = real_planner(situation)
    starts = (
        replace(s, shares=tuple(replace(share, node=s.shares[0].node) for share in s.shares)) for s in plan.starts
    )
    waits = (_replanned(w, nodes=w.estimate.nodes[:1] * len(w.estimate.nodes)) for w in plan.waits)
    return Plan(tuple(starts), tuple(waits))


def starts_half_a_gang(situation: Situation) -> Plan:
    """Asks for one node less, and so finds a place too early or where none is."""
    smaller = [replace(r, node_count=r.node_count - 1) if r.node_count > 1 else r for r in situation.queue]
    return real_planner(situation.with_queue(smaller))


def starts_whoever_fits_now(situation: Situation) -> Plan:
    """Backfill without any promise to those ahead: small ones pass large ones for ever."""
    passed: list[Request] = []
    for request in situation.ordered():
        plan = real_planner(situation.with_queue([*passed, request]))
        if any(start.reservation_id == request.reservation_id for start in plan.starts):
            passed.append(request)
    rest = [request for request in situation.ordered() if request not in passed]
    raised = [replace(request, priority=2, seq=at) for at, request in enumerate([*passed, *rest])]
    return real_planner(situation.with_queue(raised))


def protects_only_the_head(situation: Situation) -> Plan:
    """Textbook EASY: whoever does not delay the first that waits may start."""
    order = situation.ordered()
    plan = real_planner(situation)
    for late, request in enumerate(order):
        ahead = order[:late]
        first = next((r for r in ahead if begins(situation, plan)[r.reservation_id] != situation.now), None)
        if first is None or begins(situation, plan)[request.reservation_id] == situation.now:
            continue
        jumped = [first, request, *(r for r in order if r not in (first, request))]
        trial = real_planner(situation.with_queue([replace(r, priority=2, seq=at) for at, r in enumerate(jumped)]))
        started = begins(situation, trial)
        unharmed = all(
            started[r.reservation_id] == situation.now
            for r in order
            if begins(situation, plan)[r.reservation_id] == situation.now
        )
        if started[request.reservation_id] == situation.now and unharmed:
            plan = trial
    return plan


def never_backfills(situation: Situation) -> Plan:
    """Plain first in, first out: behind one that waits, everybody waits."""
    plan = real_planner(situation)
    waiting = {wait.reservation_id: wait for wait in plan.waits}
    starting = {start.reservation_id: start for start in plan.starts}
    closed: set[str] = set()
    starts, waits = [], []
    for request in situation.ordered():
        who = request.reservation_id
        if who in waiting:
            closed.add(request.gpu_type)
            waits.append(waiting[who])
        elif request.gpu_type in closed:
            nodes = tuple(share.node for share in starting[who].shares)
            waits.append(Queued(who, Estimate(99, situation.now + timedelta(days=9), None, "behind another", nodes)))
        else:
            starts.append(starting[who])
    return Plan(tuple(starts), tuple(waits))


def breaks_ties_by_order_of_mention(situation: Situation) -> Plan:
    return _plan_under_other_names(situation, [node.name for node in situation.nodes])


def breaks_ties_backwards(situation: Situation) -> Plan:
    return _plan_under_other_names(situation, sorted((node.name for node in situation.nodes), reverse=True))


def lets_late_ones_in_when_there_is_room(situation: Situation) -> Plan:
    """Serves the last first as soon as a node has something free."""
    held = {share.node for holding in situation.holdings for share in holding.shares}
    if all(node.name in held for node in situation.nodes):
        return real_planner(situation)
    backwards = [replace(request, priority=0, seq=-request.seq) for request in situation.queue]
    return real_planner(situation.with_queue(backwards))


def forgets_where_disks_are(situation: Situation) -> Plan:
    return real_planner(situation.with_queue([replace(request, zone_constraint=None) for request in situation.queue]))


def moves_disks_whenever_it_can(situation: Situation) -> Plan:
    """As if moving took no time."""
    eager = [
        replace(r, zone_constraint=replace(r.zone_constraint, move_time=timedelta(0)))
        if r.zone_constraint and r.zone_constraint.move_time
        else r
        for r in situation.queue
    ]
    return real_planner(situation.with_queue(eager))


def never_moves_a_disk(situation: Situation) -> Plan:
    staying = [
        replace(r, zone_constraint=replace(r.zone_constraint, move_time=None)) if r.zone_constraint else r
        for r in situation.queue
    ]
    return real_planner(situation.with_queue(staying))


def counts_positions_over_all_types(situation: Situation) -> Plan:
    plan = real_planner(situation)
    return replace(plan, waits=tuple(_replanned(wait, position=at) for at, wait in enumerate(plan.waits, 1)))


def _plan_under_other_names(situation: Situation, order: list[str]) -> Plan:
    """The plan that follows if the nodes' names sorted in this order."""
    names = {name: f"{at:03}" for at, name in enumerate(order)}
    back = {new: old for old, new in names.items()}
    renamed = replace(
        situation,
        nodes=tuple(replace(node, name=names[node.name]) for node in situation.nodes),
        holdings=tuple(
            replace(h, shares=tuple(replace(s, node=names.get(s.node, s.node)) for s in h.shares))
            for h in situation.holdings
        ),
    )
    plan = real_planner(renamed)
    starts = (replace(s, shares=tuple(replace(x, node=back[x.node]) for x in s.shares)) for s in plan.starts)
    waits = (_replanned(w, nodes=tuple(back[name] for name in w.estimate.nodes)) for w in plan.waits)
    return Plan(tuple(starts), tuple(waits))


def _replanned(wait: Queued, **changes: Any) -> Queued:
    return replace(wait, estimate=replace(wait.estimate, **changes))


def _start_there(request: Request, wait: Queued) -> Start:
    indices = () if request.slots else tuple(range(request.units_per_node))
    shares = (NodeShare(rank, node, request.units_per_node, indices) for rank, node in enumerate(wait.estimate.nodes))
    return Start(request.reservation_id, tuple(shares))
