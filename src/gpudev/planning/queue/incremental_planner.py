"""The plan of one GPU type, kept alive: what one arrival or one end changes costs milliseconds, however long the queue.

Between two full plans everybody keeps their place; room that appears is given, in the queue's order, to whoever can
start on it at once without touching anybody else's place. Nobody is planned later than told because of that, and
nobody waits who could start. Only a full plan lets those move up who cannot start yet (`replan`).

Time moves between calls. A place whose time has come is taken (`wake`); what should have been released and is still
there is never planned over. Where the facts have left the plan (a node changed, an end was missed or moved onto
somebody's place, much happened at once) a full plan is made, with the places so far as promises.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from gpudev.domain.cluster import Allocation, Node, NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.node_timelines import TimeSlot
from gpudev.planning.queue.occupancy import Occupancy
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.planner import DEFAULT_MARGIN, make_type_plan
from gpudev.planning.queue.queue_index import PlannedStarts, QueueIndex, SlotEnds, order_key
from gpudev.planning.queue.queue_input import duration_microseconds, gather_type_facts, to_microseconds
from gpudev.planning.queue.wait_reasons import BlockingReservation, explain_no_start, explain_wait
from gpudev.planning.queue.zone_constraints import Ranks, ZoneFilter

_MOST_INCREMENTAL_CHANGES = 32
"""So many changes at once are cheaper to answer with a full plan."""

_RECHECK_MICROSECONDS = 1_000_000
"""Microseconds."""

FreeNow = Callable[[Ranks | None], tuple[int, Mapping[int, int]]]
"""Among these nodes, or all: the most on one of them now, and the whole ones by size."""


@dataclass(frozen=True, slots=True)
class PlanUpdate:
    starts: tuple[Start, ...]
    waits: tuple[Queued, ...]
    """Of those whose place is new: newcomers, or everybody if the plan was made anew."""
    remade: bool
    """Whether a full plan was made."""


class IncrementalPlanner:
    def __init__(
        self,
        gpu_type: str,
        nodes: Sequence[Node],
        allocations: Sequence[Allocation],
        queue: Sequence[Request],
        *,
        now: datetime,
        margin: timedelta = DEFAULT_MARGIN,
        promises: Mapping[ReservationId, Estimate] | None = None,
    ) -> None:
        """A full plan, kept. `nodes` of the type, whatever is held on them, and those who ask for the type. Who
        starts at once is what the first `wake` says."""
        self._gpu_type = gpu_type
        self._margin = margin
        self._full_plans = 0
        self._make_full_plan(nodes, allocations, queue, now, promises or {})

    @property
    def next_at(self) -> datetime | None:
        """When time alone lets somebody start, or when to look again at a place that should be free by now."""
        due = self._planned_starts.first_due()
        if due is None:
            return None
        start = self._planned_starts.get_slot(due).start
        return self._to_datetime(start if start > self._occupancy.now else self._occupancy.now + _RECHECK_MICROSECONDS)

    def add_request(self, request: Request, now: datetime) -> Start | Queued:
        """Gives it the earliest place beside everybody else's."""
        self._advance(now)
        self._extend_overdue(now)
        if self._queue.has_lower_priority(request):
            return self._add_prioritised(request, now)
        timetable, duration = self._occupancy.timetable, duration_microseconds(request)
        timetable.ensure_size(request.units_per_node)
        place = self._zone_filter.find_slot(timetable, request, duration)
        self._queue.add(request)
        if place is None:
            return self._make_queued(request, None)
        if place.start <= self._occupancy.now and self._is_unheld(place.ranks, request.units_per_node):
            return self._start(request, place.ranks, taken_until=self._occupancy.now)
        timetable.take(place, request.units_per_node, duration)
        self._planned_starts.assign(request, place)
        return self._make_queued(request, place)

    def _add_prioritised(self, request: Request, now: datetime) -> Start | Queued:
        """Those with a lower priority give way: everybody is planned anew. Who else may start now is what the next
        `wake` says."""
        self._queue.add(request)
        self.replan(now)
        seat = self._planned_starts.find_slot(request.reservation_id)
        if (
            seat is not None
            and seat.start <= self._occupancy.now
            and self._is_unheld(seat.ranks, request.units_per_node)
        ):
            self._planned_starts.unassign(request)
            return self._start(request, seat.ranks, taken_until=seat.start + duration_microseconds(request))
        return self._make_queued(request, seat)

    def collect_starts(self, now: datetime) -> tuple[Start, ...]:
        """Those who start because there is room or because their time has come."""
        self._advance(now)
        self._extend_overdue(now)
        starts = list(self._start_due())
        late = self._first_due_now()
        if late is not None and self._planned_starts.get_slot(late).start < self._occupancy.now:
            self.replan(now)
            starts += self._start_due()
        return (*starts, *self._backfill())

    def replan(self, now: datetime) -> None:
        """A full plan from what is known: everybody moves up who can. To be followed by a `wake`."""
        self._make_full_plan(
            self._nodes, list(self._occupancy.allocations.values()), list(self._queue), now, self._promises()
        )

    def update(
        self, nodes: Sequence[Node], allocations: Sequence[Allocation], queue: Sequence[Request], now: datetime
    ) -> PlanUpdate:
        """Takes over everything that is true now, by what changed if that is little."""
        full_plans = self._full_plans
        # By number: ids compare and hash slowly, and there are many thousands.
        held = {holding.reservation_id.int: holding for holding in allocations}
        asked = {request.reservation_id.int: request for request in queue}
        known_held = {who.int: holding for who, holding in self._occupancy.allocations.items()}
        known_asked = {request.reservation_id.int: request for request in self._queue}
        gone = [known_held[who].reservation_id for who in known_held.keys() - held.keys()]
        gone += [known_asked[who].reservation_id for who in known_asked.keys() - asked.keys()]
        came = [asked[who] for who in asked.keys() - known_asked.keys()]
        answers: list[Start | Queued] = []
        if (
            len(gone) + len(came) <= _MOST_INCREMENTAL_CHANGES
            and self._nodes == tuple(nodes)
            and not any(self._queue.has_lower_priority(request) for request in came)
            and held.keys() <= known_held.keys()
            and held.keys().isdisjoint(asked)
            and all(_is_unchanged(asked[who], known_asked[who]) for who in asked.keys() & known_asked.keys())
            and self._move_ends([(known_held[who], holding) for who, holding in held.items()], now)
        ):
            for who in sorted(gone):
                self._remove(who)
            answers += self.collect_starts(now)
            answers += [self.add_request(request, now) for request in sorted(came, key=order_key)]
        else:
            self._make_full_plan(nodes, allocations, queue, now, self._promises())
            answers += self.collect_starts(now)
        starts = tuple(answer for answer in answers if isinstance(answer, Start))
        if self._full_plans != full_plans:
            return PlanUpdate(starts, tuple(self.iter_queued()), remade=True)
        return PlanUpdate(starts, tuple(answer for answer in answers if isinstance(answer, Queued)), remade=False)

    def iter_queued(self) -> Iterator[Queued]:
        """Everybody who waits, in the queue's order."""
        free: FreeNow = cache(self._occupancy.free_now)
        ends = self._planned_starts.find_ends(self._queue)
        for position, request in enumerate(self._queue, 1):
            seat = self._planned_starts.find_slot(request.reservation_id)
            yield self._describe_queued(request, seat, position, free, ends)

    def _make_full_plan(
        self,
        nodes: Sequence[Node],
        allocations: Sequence[Allocation],
        queue: Sequence[Request],
        now: datetime,
        promises: Mapping[ReservationId, Estimate],
    ) -> None:
        self._full_plans += 1
        self._nodes = tuple(nodes)
        facts = gather_type_facts(self._gpu_type, nodes, allocations, now, self._margin)
        self._zone_filter = ZoneFilter(facts.nodes)
        self._queue = QueueIndex(request for request in queue if request.gpu_type == self._gpu_type)
        type_plan = make_type_plan(facts, list(self._queue), promises)
        self._occupancy = Occupancy(facts, type_plan.timetable, allocations, to_microseconds(self._margin))
        self._planned_starts = PlannedStarts(self._queue, len(facts.nodes))
        for request in self._queue:
            place = type_plan.planned_starts.get(request.reservation_id)
            if place is not None:
                self._planned_starts.assign(request, place)
        self._touched_ranks: set[int] = set()
        """Nodes on which there may be room for somebody."""

    def _advance(self, now: datetime) -> None:
        self._occupancy.advance(to_microseconds(now - self._occupancy.origin))

    def _extend_overdue(self, now: datetime) -> None:
        """Comes after everybody who is gone was let go."""
        if not self._occupancy.extend_overdue():
            self.replan(now)

    def _move_ends(self, held: Iterable[tuple[Allocation, Allocation]], now: datetime) -> bool:
        """As they were and as they are. False: somebody is elsewhere, or stays longer than others were told."""
        self._advance(now)
        changed = [(was, holding) for was, holding in held if holding is not was]
        if any(holding.shares != was.shares for was, holding in changed):
            return False
        return all(self._occupancy.move_end(holding) for was, holding in changed if holding.until != was.until)

    def _remove(self, reservation_id: ReservationId) -> None:
        request = self._queue.find_request(reservation_id)
        if request is not None:
            self._free_slot(request)
            self._queue.remove(request)
        else:
            self._touched_ranks.update(self._occupancy.remove_allocation(reservation_id))

    def _start_due(self) -> Iterator[Start]:
        """Those whose time has come, up to one whose place is not free."""
        while (request := self._first_due_now()) is not None:
            seat, duration = self._planned_starts.get_slot(request), duration_microseconds(request)
            planned, units = seat.start + duration, request.units_per_node
            beyond = TimeSlot(planned, seat.ranks)  # it starts late, and so it ends late
            if not self._is_unheld(seat.ranks, units):
                return
            if seat.start < self._occupancy.now and not self._occupancy.timetable.is_free(
                beyond, units, self._occupancy.now - seat.start
            ):
                return
            self._planned_starts.unassign(request)
            yield self._start(request, seat.ranks, taken_until=planned)

    def _is_unheld(self, ranks: Sequence[int], units: int) -> bool:
        """Not only by the plan."""
        return all(self._occupancy.unheld_units(rank) >= units for rank in ranks)

    def _first_due_now(self) -> Request | None:
        request = self._planned_starts.first_due()
        if request is None or self._planned_starts.get_slot(request).start > self._occupancy.now:
            return None
        return request

    def _backfill(self) -> Iterator[Start]:
        """The first in the queue whom any of the touched nodes has room for, then the next, until there is none."""
        while self._touched_ranks:
            found: list[tuple[int, int, tuple[int, ...]]] = []
            for rank in sorted(self._touched_ranks):
                first = self._find_first_fitting(rank)
                if first is None:
                    self._touched_ranks.discard(rank)
                else:
                    order, ranks = first
                    found.append((order, self._occupancy.unheld_units(rank), ranks))
            if found:
                order, _, ranks = min(found)
                request = self._queue.find_by_order(order)
                assert request is not None
                self._free_slot(request)
                yield self._start(request, ranks, taken_until=self._occupancy.now)

    def _find_first_fitting(self, rank: int) -> tuple[int, tuple[int, ...]] | None:
        """Of those who could start on that node now beside everybody else's place, the first in the queue: its order
        and its nodes."""
        candidates: list[int] = []
        line = self._occupancy.timetable.timelines[rank]
        free = self._occupancy.unheld_units(rank)
        for units, zones in self._queue.shapes():
            if units <= free and (zones is None or rank in self._zone_filter.ranks_in_zones(zones)):
                order = self._queue.first_fitting((units, zones), line.free_duration(self._occupancy.now, units))
                if order is not None:
                    candidates.append(order)
        for who in self._planned_starts.requests_on(rank):  # for them their own place is no obstacle
            request = self._queue.find_request(who)
            if request is not None and request.node_count == 1 and self._fits_without_own_slot(request, rank):
                candidates.append(order_key(request))
        best = min(candidates, default=None)
        if line.units <= free:
            for order, gang in self._queue.gangs():
                if best is not None and order > best:
                    break
                ranks = self._find_gang_nodes(gang, rank)
                if ranks is not None:
                    return order, ranks
        return None if best is None else (best, (rank,))

    def _fits_without_own_slot(self, request: Request, rank: int) -> bool:
        seat, duration = self._planned_starts.get_slot(request), duration_microseconds(request)
        return self._occupancy.fits_without(seat, rank, request.units_per_node, duration)

    def _find_gang_nodes(self, gang: Request, rank: int) -> tuple[int, ...] | None:
        """The nodes on which it could start now, that one among them."""
        units, duration = gang.units_per_node, duration_microseconds(gang)
        line = self._occupancy.timetable.timelines[rank]
        if line.units != units:
            return None
        seat = self._planned_starts.find_slot(gang.reservation_id)
        own = () if seat is None else seat.ranks
        if line.free_duration(self._occupancy.now, units) < duration and rank not in own:
            return None
        ranks = self._occupancy.timetable.whole_nodes_free_now(units, duration)
        if gang.zone_constraint is not None:
            ranks &= self._zone_filter.ranks_in_zones(gang.zone_constraint.zones)
        ranks.update(each for each in own if self._fits_without_own_slot(gang, each))
        fitting = sorted(each for each in ranks if self._occupancy.unheld_units(each) >= units)
        if rank not in fitting or len(fitting) < gang.node_count:
            return None
        return tuple(fitting[: gang.node_count])

    def _free_slot(self, request: Request) -> None:
        """Leaves its seat, if it has one: there is room then."""
        seat = self._planned_starts.unassign(request)
        if seat is not None:
            self._occupancy.free_slot(seat, request.units_per_node, duration_microseconds(request))
            self._touched_ranks.update(seat.ranks)

    def _start(self, request: Request, ranks: Sequence[int], taken_until: int) -> Start:
        """It has no seat any more."""
        self._queue.remove(request)
        shares = tuple(
            NodeShare(
                number,
                self._occupancy.nodes[rank].name,
                request.units_per_node,
                self._occupancy.choose_gpus(request, rank),
            )
            for number, rank in enumerate(ranks)
        )
        until = self._to_datetime(self._occupancy.now + duration_microseconds(request))
        self._occupancy.add_allocation(Allocation(request.reservation_id, request.gpu_type, shares, until), taken_until)
        return Start(request.reservation_id, shares)

    def _promises(self) -> dict[ReservationId, Estimate]:
        """Everybody's place as they were told it; what is said in words does not matter."""
        names = [node.name for node in self._occupancy.nodes]
        return {
            who: Estimate(0, self._to_datetime(seat.start), None, "", tuple(names[rank] for rank in seat.ranks))
            for who, seat in self._planned_starts
        }

    def _to_datetime(self, time: int) -> datetime:
        return self._occupancy.origin + timedelta(microseconds=time)

    def _make_queued(self, request: Request, place: TimeSlot | None) -> Queued:
        position = self._queue.position(request)
        ends = {} if place is None else self._planned_starts.find_ends_on_nodes(place)
        return self._describe_queued(request, place, position, self._occupancy.free_now, ends)

    def _describe_queued(
        self,
        request: Request,
        place: TimeSlot | None,
        position: int,
        free: FreeNow,
        ends: SlotEnds,
    ) -> Queued:
        if place is None:
            reason = explain_no_start(request, self._nodes, self._occupancy.nodes)
            return Queued(request.reservation_id, Estimate(position, None, None, reason))
        ending = next(filter(None, (self._occupancy.find_blocker(rank, place.start) for rank in place.ranks)), None)
        if ending is None:
            waiting = next((who for rank in place.ranks if (who := ends.get((rank, place.start)))), None)
            ending = None if waiting is None else BlockingReservation(waiting, waiting=True)
        best, whole = free(self._zone_filter.searched_ranks(request, place))
        moves = self._zone_filter.is_outside_zones(request, place)
        reason = explain_wait(request, best, whole.get(request.units_per_node, 0), position - 1, ending, moves=moves)
        names = tuple(self._occupancy.nodes[rank].name for rank in place.ranks)
        return Queued(request.reservation_id, Estimate(position, self._to_datetime(place.start), None, reason, names))


def _is_unchanged(one: Request, other: Request) -> bool:
    """The same person's request: has anything changed that the plan depends on?"""
    return one is other or (
        one.duration == other.duration
        and one.priority == other.priority
        and one.fair_rank == other.fair_rank
        and one.seq == other.seq
        and one.units_per_node == other.units_per_node
        and one.node_count == other.node_count
        and one.zone_constraint == other.zone_constraint
    )
