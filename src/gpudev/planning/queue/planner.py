"""The queue's plan: who starts now and where, and for everybody else position, planned start and the reason.

First come, first served within a priority, with conservative backfill: in order, everybody is given the earliest
place that those ahead leave, now or later. A later request may so start before an earlier one, but only where and
as long as that takes nothing from the place of anybody ahead. The same facts give the same plan, in whatever order
they come. GPU types do not touch each other and are planned one by one.

Of the past it knows only what was promised: given the waits of the plan before, nobody is planned later than they
were told, as long as the facts allow it (a node that was lost, or an end that was missed, can break a promise).
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
    """In the queue's order, and lazily where nothing was promised: whoever asks for one answer pays for nothing
    behind it.

    A plan made from the facts alone is best for everybody together, and often keeps what was promised. Where it does
    not, another is made in which everybody first takes the place they were promised and then, in order, gives it up
    for an earlier one if there is any, until nobody finds one.
    """
    if promises:
        yield from _decide_in_order(make_type_plan(facts, requests, promises), requests)
    else:
        yield from _decide_in_order(TypePlanner(facts, requests), requests)


def make_type_plan(
    facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Estimate]
) -> "TypePlanner":
    """The plan of `plan_type` with everybody's place in it. A promise binds those of its own priority and below: who
    has a higher one is planned first, as if the others were not there."""
    priorities = sorted({request.priority for request in requests}, reverse=True)
    bound: dict[ReservationId, Estimate] = {}
    for priority in priorities[:-1]:
        first = [request for request in requests if request.priority >= priority]
        own = {who: promises[who] for who in (r.reservation_id for r in first) if who in promises and who not in bound}
        bound |= _plan_with_promises(facts, first, own | bound).make_promises(first)
    return _plan_with_promises(facts, requests, {**promises, **bound} if bound else promises)


def _plan_with_promises(
    facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Estimate]
) -> "TypePlanner":
    from_the_facts = TypePlanner(facts, requests)
    for request in requests:
        place = from_the_facts.assign_earliest(request)
        told = promises.get(request.reservation_id)
        if told is not None and told.latest is not None:
            most = max(0, to_microseconds(told.latest - facts.now))
            if place is None or place.start > most:
                break
    else:
        return from_the_facts
    keeping = TypePlanner(facts, requests, promises)
    keeping.move_all_up(requests)
    return keeping


def _decide_in_order(type_plan: "TypePlanner", requests: Sequence[Request]) -> Iterator[Start | Queued]:
    position = 0
    for request in requests:
        place = type_plan.ensure_slot(request)
        if place is not None and place.start == 0:
            yield type_plan.make_start(request, place)
        else:
            position += 1
            yield type_plan.make_queued(request, place, position)


def plan_last(facts: TypeFacts, requests: Sequence[Request]) -> Start | Queued:
    """The last answer of `plan_type` for less: nobody else's is put into words."""
    type_plan = TypePlanner(facts, requests)
    *ahead, last = requests
    position = 1
    for request in ahead:
        place = type_plan.ensure_slot(request)
        if place is not None and place.start == 0:
            type_plan.make_start(request, place)  # it takes the GPUs that the last one then cannot have
        else:
            position += 1
    place = type_plan.ensure_slot(last)
    if place is not None and place.start == 0:
        return type_plan.make_start(last, place)
    return type_plan.make_queued(last, place, position)


class TypePlanner:
    """One type's plan in the making. Without promises requests are placed in the queue's order, one by one; with
    promises those who were promised a place have it from the beginning."""

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
        """Everybody's place: first the promised ones, each kept free for its owner, then whatever was found."""
        if promises:
            self._reserve_promised(lines, requests, promises)
        self.timetable = Timetable(lines, (request.units_per_node for request in requests))
        self._taken_indices: dict[int, set[int]] = {}
        self._planned_ends: dict[tuple[int, int], ReservationId] = {}
        """(rank, time): who, of those ahead, ends there then."""
        self._free_now: dict[Ranks | None, _FreeUnits] = {}
        """Among all nodes, and among some of them once somebody waits for those."""
        self._count_among(None)

    def ensure_slot(self, request: Request) -> TimeSlot | None:
        """Its seat, or else the earliest place that is left. Those ahead must have been asked for before."""
        place = self.planned_starts.get(request.reservation_id) or self.assign_earliest(request)
        if place is not None:
            end = place.start + duration_microseconds(request)
            for rank in place.ranks:
                self._planned_ends.setdefault((rank, end), request.reservation_id)
        return place

    def assign_earliest(self, request: Request) -> TimeSlot | None:
        """Give it the earliest place that is left, and keep it."""
        duration = duration_microseconds(request)
        place = self._zone_filter.find_slot(self.timetable, request, duration)
        if place is not None:
            self._take_slot(place, request.units_per_node, duration)
            self.planned_starts[request.reservation_id] = place
        return place

    def move_all_up(self, requests: Sequence[Request]) -> None:
        """In order, everybody gives up their seat for an earlier place, or finds one if they have none.

        Again and again, because whoever moves may leave room to somebody ahead. It ends: starts only become earlier,
        and each is the end of something or now.
        """
        moved = True
        while moved:
            moved = False
            for request in requests:
                seat = self.planned_starts.get(request.reservation_id)
                if seat is None:
                    moved = self.assign_earliest(request) is not None or moved
                elif seat.start > 0:
                    moved = self._move_up(request, seat) or moved

    def _move_up(self, request: Request, slot: TimeSlot) -> bool:
        units, duration = request.units_per_node, duration_microseconds(request)
        place = self._zone_filter.find_slot(self.timetable, request, duration)
        if (place is None or place.start >= slot.start) and not self.timetable.has_free_units_before(slot, units):
            return False
        self._take_slot(slot, -units, duration)
        place = self._zone_filter.find_slot(self.timetable, request, duration)
        better = place if place is not None and place.start < slot.start else slot
        self._take_slot(better, units, duration)
        self.planned_starts[request.reservation_id] = better
        return better is not slot

    def make_promises(self, requests: Sequence[Request]) -> dict[ReservationId, Estimate]:
        """Everybody's place as a promise; what is said in words does not matter."""
        told = {}
        for request in requests:
            place = self.ensure_slot(request)
            if place is not None:
                names = tuple(self._facts.nodes[rank].name for rank in place.ranks)
                starts_at = self._facts.now + timedelta(microseconds=place.start)
                told[request.reservation_id] = Estimate(0, starts_at, None, "", names)
        return told

    def _reserve_promised(
        self, timelines: Sequence[NodeTimeline], requests: Sequence[Request], promises: Mapping[ReservationId, Estimate]
    ) -> None:
        ranks = {node.name: rank for rank, node in enumerate(self._facts.nodes)}
        for request in requests:
            told = promises.get(request.reservation_id)
            if told is None or told.latest is None or not all(name in ranks for name in told.nodes):
                continue
            start = max(0, to_microseconds(told.latest - self._facts.now))
            end, units = start + duration_microseconds(request), request.units_per_node
            seat = TimeSlot(start, tuple(ranks[name] for name in told.nodes))
            if self._zone_filter.allows(request, seat.ranks) and all(
                timelines[rank].min_free(start, end) >= units for rank in seat.ranks
            ):
                for rank in seat.ranks:
                    timelines[rank].take(start, end, units)
                self.planned_starts[request.reservation_id] = seat

    def _take_slot(self, place: TimeSlot, units: int, duration: int) -> None:
        """Negative units give it back."""
        now = place.start == 0
        if now:
            for rank in place.ranks:
                self._count_free(rank, -1)
        self.timetable.take(place, units, duration)
        if now:
            for rank in place.ranks:
                self._count_free(rank, +1)

    def make_start(self, request: Request, place: TimeSlot) -> Start:
        shares = tuple(
            NodeShare(number, self._facts.nodes[rank].name, request.units_per_node, self._choose_indices(request, rank))
            for number, rank in enumerate(place.ranks)
        )
        return Start(request.reservation_id, shares)

    def make_queued(self, request: Request, place: TimeSlot | None, position: int) -> Queued:
        facts = self._facts
        if place is None:
            reason = explain_no_start(request, facts.all_nodes, facts.nodes)
            return Queued(request.reservation_id, Estimate(position, None, None, reason))
        free = self._count_among(self._zone_filter.searched_ranks(request, place))
        reason = explain_wait(
            request,
            best=free.most_on_one_node(),
            whole=free.whole_nodes.get(request.units_per_node, 0),
            ahead=position - 1,
            blocker=self._find_blocker(place),
            moves=self._zone_filter.is_outside_zones(request, place),
        )
        starts_at = facts.now + timedelta(microseconds=place.start)
        names = tuple(facts.nodes[rank].name for rank in place.ranks)
        return Queued(request.reservation_id, Estimate(position, starts_at, None, reason, names))

    def _choose_indices(self, request: Request, rank: int) -> tuple[int, ...]:
        """The lowest that are free; enough are, since whoever has an index also counts as a unit."""
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

    def _find_blocker(self, place: TimeSlot) -> BlockingReservation | None:
        """Whose end opens the place: of those that run, the first by id; else one of those ahead."""
        for rank in place.ranks:
            ended = [held for held in self._facts.held[rank] if held.until == place.start]
            if ended:
                first = min(ended, key=lambda held: held.reservation_id)
                return BlockingReservation(first.reservation_id, overdue=first.overdue)
        for rank in place.ranks:
            ahead = self._planned_ends.get((rank, place.start))
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
        """How many nodes have so many units free now."""
        self.whole_nodes: dict[int, int] = {}
        """How many nodes of so many units are free altogether now."""

    def most_on_one_node(self) -> int:
        """On one node."""
        return next((free for free in range(len(self._nodes) - 1, 0, -1) if self._nodes[free]), 0)

    def count(self, line: NodeTimeline, change: int) -> None:
        free = max(0, line.free[0])
        self._nodes[free] += change
        if free == line.units:
            self.whole_nodes[free] = self.whole_nodes.get(free, 0) + change
