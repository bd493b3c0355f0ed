"""What must hold of any plan in any situation, as claims about a planner, so that broken ones can be held to them
too. Each raises AssertionError where the claim is untrue."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId
from support.planner.reference_planner import (
    Planner,
    free_at,
    is_home,
    lasting,
    places_now,
    reference_starts,
    slots_held,
    slots_planned,
)
from support.planner.situations import Situation
from support.planner.whole_plan import Plan, plan_queue

Claim = Callable[[Planner, Situation], None]


def real_planner(situation: Situation) -> Plan:
    return plan_queue(situation.nodes, situation.holdings, situation.queue, situation.now, situation.margin)


def begins(situation: Situation, plan: Plan) -> dict[ReservationId, datetime | None]:
    starts: dict[ReservationId, datetime | None] = {s.reservation_id: situation.now for s in plan.starts}
    return starts | {wait.reservation_id: wait.estimate.latest for wait in plan.waits}


def places(plan: Plan) -> dict[ReservationId, tuple[str, ...]]:
    """The nodes of everybody who has any."""
    found = {start.reservation_id: tuple(share.node for share in start.shares) for start in plan.starts}
    return found | {wait.reservation_id: wait.estimate.nodes for wait in plan.waits if wait.estimate.latest is not None}


def moved(situation: Situation, plan: Plan) -> set[ReservationId]:
    """Who is to be where their disk is not."""
    nodes = {node.name: node for node in situation.nodes}
    requests = {request.reservation_id: request for request in situation.queue}
    return {who for who, names in places(plan).items() if not all(is_home(nodes[n], requests[who]) for n in names)}


def readies(situation: Situation, plan: Plan) -> dict[ReservationId, datetime | None]:
    """When everybody has a place and their disk."""
    found = begins(situation, plan)
    moves = {r.reservation_id: r.zone_constraint.move_time for r in situation.queue if r.zone_constraint is not None}
    for who in moved(situation, plan):
        begun, move = found[who], moves[who]
        found[who] = None if begun is None or move is None else begun + move
    return found


def nobody_is_placed_outside_the_zones_allowed(planner: Planner, situation: Situation) -> None:
    requests = {request.reservation_id: request for request in situation.queue}
    for who in moved(situation, planner(situation)):
        anchor = requests[who].zone_constraint
        assert anchor is not None
        assert anchor.move_time is not None, f"{who} is where its disk cannot be"


def disks_are_moved_only_where_that_is_faster_than_waiting(planner: Planner, situation: Situation) -> None:
    plan = planner(situation)
    ready, order = readies(situation, plan), situation.ordered()
    for who in moved(situation, plan):
        at = next(at for at, request in enumerate(order) if request.reservation_id == who)
        anchor = order[at].zone_constraint
        assert anchor is not None
        staying = replace(order[at], zone_constraint=replace(anchor, move_time=None))
        alone = situation.with_queue([*order[:at], staying])
        home, away = begins(alone, real_planner(alone))[who], ready[who]
        assert away is not None
        assert home is None or away < home, "waiting would have been as fast"


def no_node_ever_gives_more_than_it_has(planner: Planner, situation: Situation) -> None:
    plan = planner(situation)
    nodes = {node.name: node for node in situation.nodes}
    planned = slots_planned(situation, plan)
    slots = slots_held(situation) + planned
    for slot in planned:
        node = nodes[slot.node]
        assert node.offers
        assert free_at(node, slots, slot.begins) >= 0, f"{node.name} is overfull when {slot.who} begins"


def nobody_shares_a_gpu(planner: Planner, situation: Situation) -> None:
    plan = planner(situation)
    requests = {request.reservation_id: request for request in situation.queue}
    taken: dict[str, list[int]] = {node.name: list(node.foreign_indices) for node in situation.nodes}
    for holding in situation.holdings:
        for share in holding.shares:
            taken.setdefault(share.node, []).extend(share.gpu_indices)
    units = {node.name: node.units for node in situation.nodes}
    for start in plan.starts:
        for share in start.shares:
            if requests[start.reservation_id].slots:
                assert share.gpu_indices == ()
                continue
            assert len(set(share.gpu_indices)) == share.units == requests[start.reservation_id].units_per_node
            assert set(share.gpu_indices) <= set(range(units[share.node]))
            taken[share.node].extend(share.gpu_indices)
    assert all(count == 1 for gpus in taken.values() for count in Counter(gpus).values())


def gangs_are_whole(planner: Planner, situation: Situation) -> None:
    """On so many different nodes of the type, each free altogether, from beginning to end."""
    plan = planner(situation)
    nodes = {node.name: node for node in situation.nodes}
    places = {start.reservation_id: [share.node for share in start.shares] for start in plan.starts}
    places |= {
        wait.reservation_id: list(wait.estimate.nodes) for wait in plan.waits if wait.estimate.latest is not None
    }
    slots = slots_held(situation) + slots_planned(situation, plan)
    for request in situation.queue:
        names = places.get(request.reservation_id)
        if names is None:
            continue
        assert len(names) == len(set(names)) == request.node_count
        assert {nodes[name].gpu_type for name in names} == {request.gpu_type}
        if request.node_count > 1:
            assert all(nodes[name].units == request.units_per_node == lasting(nodes[name]) for name in names)
            (begins_at,) = {slot.begins for slot in slots if slot.who == request.reservation_id}
            for slot in slots:
                if slot.node in names and slot.who != request.reservation_id:
                    assert slot.ends <= begins_at or slot.begins >= begins_at + request.duration


def nobody_ahead_is_delayed(planner: Planner, situation: Situation) -> None:
    """Whoever comes later changes nothing for those ahead."""
    whole = begins(situation, planner(situation))
    order = situation.ordered()
    for count in range(1, len(order)):
        ahead = situation.with_queue(order[:count])
        for who, alone in begins(ahead, planner(ahead)).items():
            assert whole[who] == alone


def nothing_idles_that_somebody_could_use(planner: Planner, situation: Situation) -> None:
    """Nobody waits who could start now beside what is held and beside the places of those ahead."""
    plan = planner(situation)
    planned = slots_planned(situation, plan)
    waiting = plan.estimates()
    for request in situation.queue:
        wait = waiting.get(request.reservation_id)
        if wait is not None:
            ahead = {other.reservation_id for other in situation.ahead_of(request)}
            slots = slots_held(situation) + [slot for slot in planned if slot.who in ahead]
            assert not places_now(situation, slots, request), f"{request.reservation_id} could start"
            move = request.zone_constraint.move_time if request.zone_constraint is not None else None
            if move is not None and (wait.latest is None or situation.now + move < wait.latest):
                assert not places_now(situation, slots, request, away=True), "its disk could be moved"


def the_same_facts_give_the_same_plan(planner: Planner, situation: Situation) -> None:
    shuffle = random.Random(7).sample
    shuffled = replace(
        situation,
        nodes=tuple(shuffle(situation.nodes, len(situation.nodes))),
        holdings=tuple(shuffle(situation.holdings, len(situation.holdings))),
        queue=tuple(shuffle(situation.queue, len(situation.queue))),
    )
    assert planner(shuffled) == planner(situation)


def more_free_gpus_never_delay_the_head(planner: Planner, situation: Situation) -> None:
    if not situation.queue:
        return
    head = situation.ordered()[0]
    who = head.reservation_id
    richer = [replace(situation, holdings=_without(situation.holdings, h)) for h in situation.holdings]
    richer.append(replace(situation, nodes=(*situation.nodes, Node("a-new-node", head.gpu_type, head.units_per_node))))
    before = readies(situation, planner(situation))[who]
    for more in richer:
        after = readies(more, planner(more))[who]
        assert before is None or (after is not None and after <= before)


def positions_are_a_permutation(planner: Planner, situation: Situation) -> None:
    """Per type from 1 on, in the queue's order; and everybody either starts or waits, once."""
    plan = planner(situation)
    decided = [start.reservation_id for start in plan.starts] + [wait.reservation_id for wait in plan.waits]
    assert Counter(decided) == Counter(request.reservation_id for request in situation.queue)
    positions = {wait.reservation_id: wait.estimate.position for wait in plan.waits}
    for gpu_type in {request.gpu_type for request in situation.queue}:
        waiting = [r.reservation_id for r in situation.ordered() if r.gpu_type == gpu_type]
        own = [positions[who] for who in waiting if who in positions]
        assert own == list(range(1, len(own) + 1))


def it_says_what_the_reference_says(planner: Planner, situation: Situation) -> None:
    plan = planner(situation)
    places: dict[ReservationId, tuple[datetime, tuple[str, ...]] | None] = {
        s.reservation_id: (situation.now, tuple(share.node for share in s.shares)) for s in plan.starts
    }
    for wait in plan.waits:
        places[wait.reservation_id] = (
            None if wait.estimate.latest is None else (wait.estimate.latest, wait.estimate.nodes)
        )
    assert places == reference_starts(situation)


def _without(holdings: tuple[Allocation, ...], one: Allocation) -> tuple[Allocation, ...]:
    return tuple(holding for holding in holdings if holding is not one)
