"""The planner: what starts now and where; position, planned start and wait reason of every other request.

First come, first served within a priority, with conservative backfill: in queue order, each request gets the earliest
slot that those ahead leave. A later request may start before an earlier one if that delays no request ahead. The same
facts give the same plan, in whatever order they come. GPU types are independent and planned one by one.

The only input from the past is the promises (guaranteed starts of the previous plan): no request is planned later than
promised, unless the facts make it impossible (a lost node, a missed end).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.node_timelines import NodeTimeline, TimeSlot, Timetable
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.queue_input import TypeFacts, duration_microseconds, to_microseconds
from gpudev.planning.queue.wait_reasons import BlockingReservation, explain_no_start, explain_wait
from gpudev.planning.queue.zone_constraints import Ranks, ZoneFilter

DEFAULT_MARGIN = timedelta(seconds=30)


def plan_type(
    facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Estimate] | None = None
) -> Iterator[Start | Queued]:
    """In queue order; lazy if there are no promises, so the first results cost nothing for those behind them.

    A plan from the facts alone is best overall and often keeps all promises. If it does not, a second plan assigns the
    promised slots first and then moves requests up, in queue order, until none can move.
    """
    if promises:
        yield from _decide_in_order(make_type_plan(facts, requests, promises), requests)
    else:
        yield from _decide_in_order(TypePlanner(facts, requests), requests)


def make_type_plan(
    facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Estimate]
) -> "TypePlanner":
    """The plan of `plan_type` with all slots. A promise binds requests of its own priority and below: higher priorities
    are planned first, as if the others did not exist."""
    priorities = sorted({request.priority for request in requests}, reverse=True)
    bound: dict[ReservationId, Estimate] = {}
    for priority in priorities[:-1]:
        first = [request for request in requests if request.priority >= priority]
        own = {key: promises[key] for key in (r.reservation_id for r in first) if key in promises and key not in bound}
        bound |= _plan_with_promises(facts, first, own | bound).make_promises(first)
    return _plan_with_promises(facts, requests, {**promises, **bound} if bound else promises)


def _plan_with_promises(
    facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Estimate]
) -> "TypePlanner":
    without_promises = TypePlanner(facts, requests)
    for request in requests:
        slot = without_promises.assign_earliest(request)
        promise = promises.get(request.reservation_id)
        if promise is not None and promise.latest is not None:
            most = max(0, to_microseconds(promise.latest - facts.now))
            if slot is None or slot.start > most:
                break
    else:
        return without_promises
    with_promises = TypePlanner(facts, requests, promises)
    with_promises.move_all_up(requests)
    return with_promises


def _decide_in_order(type_plan: "TypePlanner", requests: Sequence[Request]) -> Iterator[Start | Queued]:
    position = 0
    for request in requests:
        slot = type_plan.ensure_slot(request)
        if slot is not None and slot.start == 0:
            yield type_plan.make_start(request, slot)
        else:
            position += 1
            yield type_plan.make_queued(request, slot, position)


def plan_last(facts: TypeFacts, requests: Sequence[Request]) -> Start | Queued:
    """The last result of `plan_type`, cheaper: no wait reasons of the others."""
    type_plan = TypePlanner(facts, requests)
    *ahead, last = requests
    position = 1
    for request in ahead:
        slot = type_plan.ensure_slot(request)
        if slot is not None and slot.start == 0:
            type_plan.make_start(request, slot)  # takes its GPU indices
        else:
            position += 1
    slot = type_plan.ensure_slot(last)
    if slot is not None and slot.start == 0:
        return type_plan.make_start(last, slot)
    return type_plan.make_queued(last, slot, position)


class TypePlanner:
    """Builds one type's plan. Without promises, requests are planned one by one in queue order; with promises, the
    promised slots are assigned first."""

    def __init__(
        self,
        facts: TypeFacts,
        requests: Sequence[Request],
        promises: Mapping[ReservationId, Estimate] | None = None,
    ) -> None:
        self._facts = facts
        self._zone_filter = ZoneFilter(facts.nodes)
        lines = facts.timelines()
        self.planned_starts: dict[ReservationId, TimeSlot] = {}
        """All slots: the promised ones first, then those found."""
        if promises:
            self._reserve_promised(lines, requests, promises)
        self.timetable = Timetable(lines, (request.units_per_node for request in requests))
        self._taken_indices: dict[int, set[int]] = {}
        self._planned_ends: dict[tuple[int, int], ReservationId] = {}
        """(rank, time) → the planned reservation that ends there and then."""
        self._free_now: dict[Ranks | None, _FreeUnits] = {}
        """By subset of nodes (None: all), built on first use."""
        self._count_among(None)

    def ensure_slot(self, request: Request) -> TimeSlot | None:
        """Its slot, or else the earliest that is left. Call it in queue order."""
        slot = self.planned_starts.get(request.reservation_id) or self.assign_earliest(request)
        if slot is not None:
            end = slot.start + duration_microseconds(request)
            for rank in slot.ranks:
                self._planned_ends.setdefault((rank, end), request.reservation_id)
        return slot

    def assign_earliest(self, request: Request) -> TimeSlot | None:
        """Assigns the earliest slot that is left."""
        duration = duration_microseconds(request)
        slot = self._zone_filter.find_slot(self.timetable, request, duration)
        if slot is not None:
            self._take_slot(slot, request.units_per_node, duration)
            self.planned_starts[request.reservation_id] = slot
        return slot

    def move_all_up(self, requests: Sequence[Request]) -> None:
        """In queue order, moves each request to an earlier slot, or assigns one if it has none. Repeats, because a move
        may free units for a request ahead. It terminates: starts only become earlier, and each is either now or the end
        of something.
        """
        moved = True
        while moved:
            moved = False
            for request in requests:
                slot = self.planned_starts.get(request.reservation_id)
                if slot is None:
                    moved = self.assign_earliest(request) is not None or moved
                elif slot.start > 0:
                    moved = self._move_up(request, slot) or moved

    def _move_up(self, request: Request, slot: TimeSlot) -> bool:
        units, duration = request.units_per_node, duration_microseconds(request)
        found = self._zone_filter.find_slot(self.timetable, request, duration)
        if (found is None or found.start >= slot.start) and not self.timetable.has_free_units_before(slot, units):
            return False
        self._take_slot(slot, -units, duration)
        found = self._zone_filter.find_slot(self.timetable, request, duration)
        better = found if found is not None and found.start < slot.start else slot
        self._take_slot(better, units, duration)
        self.planned_starts[request.reservation_id] = better
        return better is not slot

    def make_promises(self, requests: Sequence[Request]) -> dict[ReservationId, Estimate]:
        """All slots as promises; position and reason are not used."""
        promised = {}
        for request in requests:
            slot = self.ensure_slot(request)
            if slot is not None:
                names = tuple(self._facts.nodes[rank].name for rank in slot.ranks)
                starts_at = self._facts.now + timedelta(microseconds=slot.start)
                promised[request.reservation_id] = Estimate(0, starts_at, None, "", names)
        return promised

    def _reserve_promised(
        self, timelines: Sequence[NodeTimeline], requests: Sequence[Request], promises: Mapping[ReservationId, Estimate]
    ) -> None:
        ranks = {node.name: rank for rank, node in enumerate(self._facts.nodes)}
        for request in requests:
            promise = promises.get(request.reservation_id)
            if promise is None or promise.latest is None or not all(name in ranks for name in promise.nodes):
                continue
            start = max(0, to_microseconds(promise.latest - self._facts.now))
            end, units = start + duration_microseconds(request), request.units_per_node
            slot = TimeSlot(start, tuple(ranks[name] for name in promise.nodes))
            if self._zone_filter.allows(request, slot.ranks) and all(
                timelines[rank].min_free(start, end) >= units for rank in slot.ranks
            ):
                for rank in slot.ranks:
                    timelines[rank].take(start, end, units)
                self.planned_starts[request.reservation_id] = slot

    def _take_slot(self, slot: TimeSlot, units: int, duration: int) -> None:
        """Negative units return them."""
        now = slot.start == 0
        if now:
            for rank in slot.ranks:
                self._count_free(rank, -1)
        self.timetable.take(slot, units, duration)
        if now:
            for rank in slot.ranks:
                self._count_free(rank, +1)

    def make_start(self, request: Request, slot: TimeSlot) -> Start:
        shares = tuple(
            NodeShare(number, self._facts.nodes[rank].name, request.units_per_node, self._choose_indices(request, rank))
            for number, rank in enumerate(slot.ranks)
        )
        return Start(request.reservation_id, shares)

    def make_queued(self, request: Request, slot: TimeSlot | None, position: int) -> Queued:
        facts = self._facts
        if slot is None:
            reason = explain_no_start(request, facts.all_nodes, facts.nodes)
            return Queued(request.reservation_id, Estimate(position, None, None, reason))
        free = self._count_among(self._zone_filter.searched_ranks(request, slot))
        reason = explain_wait(
            request,
            best=free.most_on_one_node(),
            whole=free.whole_nodes.get(request.units_per_node, 0),
            ahead=position - 1,
            blocker=self._find_blocker(slot),
            moves=self._zone_filter.is_outside_zones(request, slot),
        )
        starts_at = facts.now + timedelta(microseconds=slot.start)
        names = tuple(facts.nodes[rank].name for rank in slot.ranks)
        return Queued(request.reservation_id, Estimate(position, starts_at, None, reason, names))

    def _choose_indices(self, request: Request, rank: int) -> tuple[int, ...]:
        """The lowest free GPU indices. Enough are free, because every taken index also counts as a unit."""
        if request.slots:
            return ()
        node = self._facts.nodes[rank]
        taken = self._taken_indices.get(rank)
        if taken is None:
            taken = set(node.foreign_indices)
            for held in self._facts.held[rank]:
                taken.update(held.gpu_indices)
            self._taken_indices[rank] = taken
        free = [index for index in range(node.units) if index not in taken]
        chosen = tuple(free[: request.units_per_node])
        taken.update(chosen)
        return chosen

    def _find_blocker(self, slot: TimeSlot) -> BlockingReservation | None:
        """The reservation whose end opens the slot: a running one (the first by id), else a planned one ahead."""
        for rank in slot.ranks:
            ended = [held for held in self._facts.held[rank] if held.until == slot.start]
            if ended:
                first = min(ended, key=lambda held: held.reservation_id)
                return BlockingReservation(first.reservation_id, overdue=first.overdue)
        for rank in slot.ranks:
            ahead = self._planned_ends.get((rank, slot.start))
            if ahead is not None:
                return BlockingReservation(ahead, waiting=True)
        return None

    def _count_free(self, rank: int, change: int) -> None:
        for ranks, free in self._free_now.items():
            if ranks is None or rank in ranks:
                free.count(self.timetable.timelines[rank], change)

    def _count_among(self, ranks: Ranks | None) -> "_FreeUnits":
        free = self._free_now.get(ranks)
        if free is None:
            lines = self.timetable.timelines
            free = self._free_now[ranks] = _FreeUnits(max((line.units for line in lines), default=0))
            for rank in range(len(lines)) if ranks is None else ranks:
                free.count(lines[rank], +1)
        return free


class _FreeUnits:
    def __init__(self, most: int) -> None:
        self._nodes = [0] * (1 + most)
        """Number of nodes by free units."""
        self.whole_nodes: dict[int, int] = {}
        """Number of completely free nodes by size."""

    def most_on_one_node(self) -> int:
        return next((free for free in range(len(self._nodes) - 1, 0, -1) if self._nodes[free]), 0)

    def count(self, line: NodeTimeline, change: int) -> None:
        free = max(0, line.free[0])
        self._nodes[free] += change
        if free == line.units:
            self.whole_nodes[free] = self.whole_nodes.get(free, 0) + change
