"""The queue's plan: who starts now and where, and for everybody else position, planned start and the reason.

First come, first served within a priority, with conservative backfill: in order, everybody is given the earliest
place that those ahead leave, now or later. A later request may so start before an earlier one, but only where and
as long as that takes nothing from the place of anybody ahead. The same facts give the same plan, in whatever order
they come. GPU types do not touch each other and are planned one by one.

Of the past it knows only what was promised: given the waits of the plan before, nobody is planned later than they
were told, as long as the facts allow it (a node that was lost, or an end that was missed, can break a promise).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.cluster import Holding, Node, Share
from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import TypeFacts, by_type, length_of, microseconds
from gpudev.planning.queue.node_timelines import Line, Place, Timetable
from gpudev.planning.queue.plan import Plan, Request, Start, Wait
from gpudev.planning.queue.wait_reasons import Ending, why_never, why_not_now
from gpudev.planning.queue.zone_constraints import Grounds, Ranks

DEFAULT_MARGIN = timedelta(seconds=30)
_STRIDE = 32
"""How many requests are planned between two checks whether anybody left could start now."""


def plan_queue(
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
    queue: Sequence[Request],
    now: datetime,
    margin: timedelta = DEFAULT_MARGIN,
    *,
    promises: Mapping[ReservationId, Wait] | None = None,
) -> Plan:
    """`margin`: how long what should have ended by now may still take to be freed. `promises`: what those who wait
    were told last."""
    starts: list[Start] = []
    waits: list[Wait] = []
    for facts, requests in by_type(nodes, holdings, queue, now, margin):
        for decision in plan_type(facts, requests, promises):
            if isinstance(decision, Start):
                starts.append(decision)
            else:
                waits.append(decision)
    return Plan(tuple(starts), tuple(waits))


def plan_starts(
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
    queue: Sequence[Request],
    now: datetime,
    margin: timedelta = DEFAULT_MARGIN,
) -> tuple[Start, ...]:
    """The starts of `plan_queue` and nothing else, for less: it ends when nobody left could start now."""
    starts: list[Start] = []
    for facts, requests in by_type(nodes, holdings, queue, now, margin):
        type_plan = TypePlan(facts, requests, in_words=False)
        for first, shortest in _strides(requests):
            if not type_plan.can_any_start(shortest):
                break
            for request in requests[first : first + _STRIDE]:
                place = type_plan.place(request)
                if place is not None and place.start == 0:
                    starts.append(type_plan.start(request, place))
    return tuple(starts)


def plan_type(
    facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Wait] | None = None
) -> Iterator[Start | Wait]:
    """In the queue's order, and lazily where nothing was promised: whoever asks for one answer pays for nothing
    behind it.

    A plan made from the facts alone is best for everybody together, and often keeps what was promised. Where it does
    not, another is made in which everybody first takes the place they were promised and then, in order, gives it up
    for an earlier one if there is any, until nobody finds one.
    """
    if promises:
        yield from _decide(make_type_plan(facts, requests, promises), requests)
    else:
        yield from _decide(TypePlan(facts, requests), requests)


def make_type_plan(facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Wait]) -> "TypePlan":
    """The plan of `plan_type` with everybody's place in it. A promise binds those of its own priority and below: who
    has a higher one is planned first, as if the others were not there."""
    priorities = sorted({request.priority for request in requests}, reverse=True)
    bound: dict[ReservationId, Wait] = {}
    for priority in priorities[:-1]:
        first = [request for request in requests if request.priority >= priority]
        own = {who: promises[who] for who in (r.reservation_id for r in first) if who in promises and who not in bound}
        bound |= _make(facts, first, own | bound).places(first)
    return _make(facts, requests, {**promises, **bound} if bound else promises)


def _make(facts: TypeFacts, requests: Sequence[Request], promises: Mapping[ReservationId, Wait]) -> "TypePlan":
    from_the_facts = TypePlan(facts, requests)
    for request in requests:
        place = from_the_facts.place(request)
        told = promises.get(request.reservation_id)
        if told is not None and told.starts_at is not None:
            most = max(0, microseconds(told.starts_at - facts.now))
            if place is None or place.start > most:
                break
    else:
        return from_the_facts
    keeping = TypePlan(facts, requests, promises)
    keeping.settle(requests)
    return keeping


def _decide(type_plan: "TypePlan", requests: Sequence[Request]) -> Iterator[Start | Wait]:
    position = 0
    for request in requests:
        place = type_plan.place_of(request)
        if place is not None and place.start == 0:
            yield type_plan.start(request, place)
        else:
            position += 1
            yield type_plan.wait(request, place, position)


def plan_last(facts: TypeFacts, requests: Sequence[Request]) -> Start | Wait:
    """The last answer of `plan_type` for less: nobody else's is put into words."""
    type_plan = TypePlan(facts, requests)
    *ahead, last = requests
    position = 1
    for request in ahead:
        place = type_plan.place_of(request)
        if place is not None and place.start == 0:
            type_plan.start(request, place)  # it takes the GPUs that the last one then cannot have
        else:
            position += 1
    place = type_plan.place_of(last)
    if place is not None and place.start == 0:
        return type_plan.start(last, place)
    return type_plan.wait(last, place, position)


class TypePlan:
    """One type's plan in the making. Without promises requests are placed in the queue's order, one by one; with
    promises those who were promised a place have it from the beginning."""

    def __init__(
        self,
        facts: TypeFacts,
        requests: Sequence[Request],
        promises: Mapping[ReservationId, Wait] | None = None,
        *,
        in_words: bool = True,
    ) -> None:
        """`in_words`: whether anybody will be told why they wait."""
        self._facts = facts
        self._in_words = in_words
        self._grounds = Grounds(facts.nodes)
        lines = facts.lines()
        self.seats: dict[ReservationId, Place] = {}
        """Everybody's place: first the promised ones, each kept free for its owner, then whatever was found."""
        if promises:
            self._keep_seats(lines, requests, promises)
        self.timetable = Timetable(lines, (request.units_per_node for request in requests))
        self._taken_indices: dict[int, set[int]] = {}
        self._planned_ends: dict[tuple[int, int], ReservationId] = {}
        """(rank, time): who, of those ahead, ends there then."""
        self._free_now: dict[Ranks | None, _FreeNow] = {}
        """Among all nodes, and among some of them once somebody waits for those."""
        self._count_among(None)

    def place_of(self, request: Request) -> Place | None:
        """Its seat, or else the earliest place that is left. Those ahead must have been asked for before."""
        place = self.seats.get(request.reservation_id) or self.place(request)
        if place is not None:
            end = place.start + length_of(request)
            for rank in place.ranks:
                self._planned_ends.setdefault((rank, end), request.reservation_id)
        return place

    def place(self, request: Request) -> Place | None:
        """Give it the earliest place that is left, and keep it."""
        duration = length_of(request)
        place = self._grounds.find(self.timetable, request, duration)
        if place is not None:
            self._take(place, request.units_per_node, duration)
            self.seats[request.reservation_id] = place
        return place

    def settle(self, requests: Sequence[Request]) -> None:
        """In order, everybody gives up their seat for an earlier place, or finds one if they have none.

        Again and again, because whoever moves may leave room to somebody ahead. It ends: starts only become earlier,
        and each is the end of something or now.
        """
        moved = True
        while moved:
            moved = False
            for request in requests:
                seat = self.seats.get(request.reservation_id)
                if seat is None:
                    moved = self.place(request) is not None or moved
                elif seat.start > 0:
                    moved = self._move_up(request, seat) or moved

    def _move_up(self, request: Request, seat: Place) -> bool:
        units, duration = request.units_per_node, length_of(request)
        place = self._grounds.find(self.timetable, request, duration)
        if (place is None or place.start >= seat.start) and not self.timetable.touches_room(seat, units):
            return False
        self._take(seat, -units, duration)
        place = self._grounds.find(self.timetable, request, duration)
        better = place if place is not None and place.start < seat.start else seat
        self._take(better, units, duration)
        self.seats[request.reservation_id] = better
        return better is not seat

    def places(self, requests: Sequence[Request]) -> dict[ReservationId, Wait]:
        """Everybody's place as a promise; what is said in words does not matter."""
        told = {}
        for request in requests:
            place = self.place_of(request)
            if place is not None:
                names = tuple(self._facts.nodes[rank].name for rank in place.ranks)
                starts_at = self._facts.now + timedelta(microseconds=place.start)
                told[request.reservation_id] = Wait(request.reservation_id, 0, starts_at, names, "")
        return told

    def _keep_seats(
        self, lines: Sequence[Line], requests: Sequence[Request], promises: Mapping[ReservationId, Wait]
    ) -> None:
        ranks = {node.name: rank for rank, node in enumerate(self._facts.nodes)}
        for request in requests:
            told = promises.get(request.reservation_id)
            if told is None or told.starts_at is None or not all(name in ranks for name in told.nodes):
                continue
            start = max(0, microseconds(told.starts_at - self._facts.now))
            end, units = start + length_of(request), request.units_per_node
            seat = Place(start, tuple(ranks[name] for name in told.nodes))
            if self._grounds.allow(request, seat.ranks) and all(
                lines[rank].least_free(start, end) >= units for rank in seat.ranks
            ):
                for rank in seat.ranks:
                    lines[rank].take(start, end, units)
                self.seats[request.reservation_id] = seat

    def _take(self, place: Place, units: int, duration: int) -> None:
        """Negative units give it back."""
        now = place.start == 0 and self._in_words
        if now:
            for rank in place.ranks:
                self._count_free(rank, -1)
        self.timetable.take(place, units, duration)
        if now:
            for rank in place.ranks:
                self._count_free(rank, +1)

    def start(self, request: Request, place: Place) -> Start:
        shares = tuple(
            Share(number, self._facts.nodes[rank].name, request.units_per_node, self._choose_indices(request, rank))
            for number, rank in enumerate(place.ranks)
        )
        return Start(request.reservation_id, shares)

    def wait(self, request: Request, place: Place | None, position: int) -> Wait:
        facts = self._facts
        if place is None:
            reason = why_never(request, facts.known, facts.nodes)
            return Wait(request.reservation_id, position, None, (), reason)
        free = self._count_among(self._grounds.counted(request, place))
        reason = why_not_now(
            request,
            best=free.most(),
            whole=free.whole.get(request.units_per_node, 0),
            ahead=position - 1,
            ending=self._ending_before(place),
            moves=self._grounds.is_away(request, place),
        )
        starts_at = facts.now + timedelta(microseconds=place.start)
        return Wait(
            request.reservation_id, position, starts_at, tuple(facts.nodes[rank].name for rank in place.ranks), reason
        )

    def can_any_start(self, shortest: Mapping[int, timedelta]) -> bool:
        """`shortest`: the least duration asked for, by units per node."""
        return any(
            self.timetable.can_start_now(units, max(1, microseconds(least))) for units, least in shortest.items()
        )

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

    def _ending_before(self, place: Place) -> Ending | None:
        """Whose end opens the place: of those that run, the first by id; else one of those ahead."""
        for rank in place.ranks:
            ended = [held for held in self._facts.held[rank] if held.until == place.start]
            if ended:
                first = min(ended, key=lambda held: held.reservation_id)
                return Ending(first.reservation_id, overdue=first.overdue)
        for rank in place.ranks:
            ahead = self._planned_ends.get((rank, place.start))
            if ahead is not None:
                return Ending(ahead, waiting=True)
        return None

    def _count_free(self, rank: int, change: int) -> None:
        for ranks, free in self._free_now.items():
            if ranks is None or rank in ranks:
                free.count(self.timetable.lines[rank], change)

    def _count_among(self, ranks: Ranks | None) -> "_FreeNow":
        free = self._free_now.get(ranks)
        if free is None:
            lines = self.timetable.lines
            free = self._free_now[ranks] = _FreeNow(max((line.units for line in lines), default=0))
            for rank in range(len(lines)) if ranks is None else ranks:
                free.count(lines[rank], +1)
        return free


class _FreeNow:
    def __init__(self, most: int) -> None:
        self._nodes = [0] * (1 + most)
        """How many nodes have so many units free now."""
        self.whole: dict[int, int] = {}
        """How many nodes of so many units are free altogether now."""

    def most(self) -> int:
        """On one node."""
        return next((free for free in range(len(self._nodes) - 1, 0, -1) if self._nodes[free]), 0)

    def count(self, line: Line, change: int) -> None:
        free = max(0, line.free[0])
        self._nodes[free] += change
        if free == line.units:
            self.whole[free] = self.whole.get(free, 0) + change


def _strides(requests: Sequence[Request]) -> list[tuple[int, dict[int, timedelta]]]:
    """The beginnings of strides of requests, each with the least duration by units per node from there to the end."""
    strides: list[tuple[int, dict[int, timedelta]]] = []
    shortest: dict[int, timedelta] = {}
    for first in range((len(requests) - 1) // _STRIDE * _STRIDE, -1, -_STRIDE):
        for request in requests[first : first + _STRIDE]:
            least = shortest.get(request.units_per_node)
            if least is None or request.duration < least:
                shortest[request.units_per_node] = request.duration
        strides.append((first, dict(shortest)))
    return strides[::-1]
