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

from gpudev.domain.cluster import Holding, Node, Share
from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import length_of, microseconds, of_one_type
from gpudev.planning.queue.node_timelines import Place
from gpudev.planning.queue.occupancy import Room
from gpudev.planning.queue.plan import Plan, Request, Start, Wait
from gpudev.planning.queue.planner import DEFAULT_MARGIN, make_type_plan
from gpudev.planning.queue.queue_index import Waiting, order_of
from gpudev.planning.queue.wait_reasons import Ending, why_never, why_not_now
from gpudev.planning.queue.zone_constraints import Grounds, Ranks
from gpudev.planning.seats import Ends, Seats

_MANY = 32
"""So many changes at once are cheaper to answer with a full plan."""

_AGAIN = 1_000_000
"""Microseconds."""

FreeNow = Callable[[Ranks | None], tuple[int, Mapping[int, int]]]
"""Among these nodes, or all: the most on one of them now, and the whole ones by size."""


@dataclass(frozen=True, slots=True)
class Turn:
    starts: tuple[Start, ...]
    waits: tuple[Wait, ...]
    """Of those whose place is new: newcomers, or everybody if the plan was made anew."""
    remade: bool
    """Whether a full plan was made."""


class LivePlan:
    def __init__(
        self,
        gpu_type: str,
        nodes: Sequence[Node],
        holdings: Sequence[Holding],
        queue: Sequence[Request],
        *,
        now: datetime,
        margin: timedelta = DEFAULT_MARGIN,
        promises: Mapping[ReservationId, Wait] | None = None,
    ) -> None:
        """A full plan, kept. `nodes` of the type, whatever is held on them, and those who ask for the type. Who
        starts at once is what the first `wake` says."""
        self._gpu_type = gpu_type
        self._margin = margin
        self._full_plans = 0
        self._make(nodes, holdings, queue, now, promises or {})

    @property
    def next_at(self) -> datetime | None:
        """When time alone lets somebody start, or when to look again at a place that should be free by now."""
        due = self._seats.first_due()
        if due is None:
            return None
        start = self._seats.get(due).start
        return self._moment(start if start > self._room.now else self._room.now + _AGAIN)

    def arrive(self, request: Request, now: datetime) -> Start | Wait:
        """Gives it the earliest place beside everybody else's."""
        self._advance(now)
        self._face_the_overdue(now)
        if self._waiting.outranked_by(request):
            return self._arrive_first(request, now)
        timetable, duration = self._room.timetable, length_of(request)
        timetable.ensure_size(request.units_per_node)
        place = self._grounds.find(timetable, request, duration)
        self._waiting.add(request)
        if place is None:
            return self._wait(request, None)
        if place.start <= self._room.now and self._is_there(place.ranks, request.units_per_node):
            return self._start(request, place.ranks, taken_until=self._room.now)
        timetable.take(place, request.units_per_node, duration)
        self._seats.sit(request, place)
        return self._wait(request, place)

    def _arrive_first(self, request: Request, now: datetime) -> Start | Wait:
        """Those with a lower priority give way: everybody is planned anew. Who else may start now is what the next
        `wake` says."""
        self._waiting.add(request)
        self.replan(now)
        seat = self._seats.find(request.reservation_id)
        if seat is not None and seat.start <= self._room.now and self._is_there(seat.ranks, request.units_per_node):
            self._seats.stand_up(request)
            return self._start(request, seat.ranks, taken_until=seat.start + length_of(request))
        return self._wait(request, seat)

    def end(self, reservation_id: ReservationId, now: datetime) -> tuple[Start, ...]:
        """Somebody's GPUs are free, or somebody who waited has given up. Those who start now."""
        self._advance(now)
        self._leave(reservation_id)
        return self.wake(now)

    def wake(self, now: datetime) -> tuple[Start, ...]:
        """Those who start because there is room or because their time has come."""
        self._advance(now)
        self._face_the_overdue(now)
        starts = list(self._start_due())
        late = self._first_due_now()
        if late is not None and self._seats.get(late).start < self._room.now:
            self.replan(now)
            starts += self._start_due()
        return (*starts, *self._start_in_room())

    def replan(self, now: datetime) -> None:
        """A full plan from what is known: everybody moves up who can. To be followed by a `wake`."""
        self._make(self._nodes, list(self._room.held.values()), list(self._waiting), now, self._promises())

    def turn(self, nodes: Sequence[Node], holdings: Sequence[Holding], queue: Sequence[Request], now: datetime) -> Turn:
        """Takes over everything that is true now, by what changed if that is little."""
        full_plans = self._full_plans
        # By number: ids compare and hash slowly, and there are many thousands.
        held = {holding.reservation_id.int: holding for holding in holdings}
        asked = {request.reservation_id.int: request for request in queue}
        known_held = {who.int: holding for who, holding in self._room.held.items()}
        known_asked = {request.reservation_id.int: request for request in self._waiting}
        gone = [known_held[who].reservation_id for who in known_held.keys() - held.keys()]
        gone += [known_asked[who].reservation_id for who in known_asked.keys() - asked.keys()]
        came = [asked[who] for who in asked.keys() - known_asked.keys()]
        answers: list[Start | Wait] = []
        if (
            len(gone) + len(came) <= _MANY
            and self._nodes == tuple(nodes)
            and not any(self._waiting.outranked_by(request) for request in came)
            and held.keys() <= known_held.keys()
            and held.keys().isdisjoint(asked)
            and all(_alike(asked[who], known_asked[who]) for who in asked.keys() & known_asked.keys())
            and self._move_ends([(known_held[who], holding) for who, holding in held.items()], now)
        ):
            for who in sorted(gone):
                self._leave(who)
            answers += self.wake(now)
            answers += [self.arrive(request, now) for request in sorted(came, key=order_of)]
        else:
            self._make(nodes, holdings, queue, now, self._promises())
            answers += self.wake(now)
        starts = tuple(answer for answer in answers if isinstance(answer, Start))
        if self._full_plans != full_plans:
            return Turn(starts, tuple(self.waits()), remade=True)
        return Turn(starts, tuple(answer for answer in answers if isinstance(answer, Wait)), remade=False)

    def plan(self, starts: Iterable[Start] = ()) -> Plan:
        return Plan(tuple(starts), tuple(self.waits()))

    def waits(self) -> Iterator[Wait]:
        """Everybody who waits, in the queue's order."""
        free: FreeNow = cache(self._room.free_now)
        ends = self._seats.ends(self._waiting)
        for position, request in enumerate(self._waiting, 1):
            seat = self._seats.find(request.reservation_id)
            yield self._tell(request, seat, position, free, ends)

    def wait_of(self, reservation_id: ReservationId) -> Wait | None:
        request = self._waiting.find(reservation_id)
        return None if request is None else self._wait(request, self._seats.find(reservation_id))

    def _make(
        self,
        nodes: Sequence[Node],
        holdings: Sequence[Holding],
        queue: Sequence[Request],
        now: datetime,
        promises: Mapping[ReservationId, Wait],
    ) -> None:
        self._full_plans += 1
        self._nodes = tuple(nodes)
        facts = of_one_type(self._gpu_type, nodes, holdings, now, self._margin)
        self._grounds = Grounds(facts.nodes)
        self._waiting = Waiting(request for request in queue if request.gpu_type == self._gpu_type)
        type_plan = make_type_plan(facts, list(self._waiting), promises)
        self._room = Room(facts, type_plan.timetable, holdings, microseconds(self._margin))
        self._seats = Seats(self._waiting, len(facts.nodes))
        for request in self._waiting:
            place = type_plan.seats.get(request.reservation_id)
            if place is not None:
                self._seats.sit(request, place)
        self._touched: set[int] = set()
        """Nodes on which there may be room for somebody."""

    def _advance(self, now: datetime) -> None:
        self._room.advance(microseconds(now - self._room.origin))

    def _face_the_overdue(self, now: datetime) -> None:
        """Comes after everybody who is gone was let go."""
        if not self._room.keep_the_overdue():
            self.replan(now)

    def _move_ends(self, held: Iterable[tuple[Holding, Holding]], now: datetime) -> bool:
        """As they were and as they are. False: somebody is elsewhere, or stays longer than others were told."""
        self._advance(now)
        changed = [(was, holding) for was, holding in held if holding is not was]
        if any(holding.shares != was.shares for was, holding in changed):
            return False
        return all(self._room.move_end(holding) for was, holding in changed if holding.until != was.until)

    def _leave(self, reservation_id: ReservationId) -> None:
        request = self._waiting.find(reservation_id)
        if request is not None:
            self._get_up(request)
            self._waiting.remove(request)
        else:
            self._touched.update(self._room.release(reservation_id))

    def _start_due(self) -> Iterator[Start]:
        """Those whose time has come, up to one whose place is not free."""
        while (request := self._first_due_now()) is not None:
            seat, duration = self._seats.get(request), length_of(request)
            planned, units = seat.start + duration, request.units_per_node
            beyond = Place(planned, seat.ranks)  # it starts late, and so it ends late
            if not self._is_there(seat.ranks, units):
                return
            if seat.start < self._room.now and not self._room.timetable.is_free(
                beyond, units, self._room.now - seat.start
            ):
                return
            self._seats.stand_up(request)
            yield self._start(request, seat.ranks, taken_until=planned)

    def _is_there(self, ranks: Sequence[int], units: int) -> bool:
        """Not only by the plan."""
        return all(self._room.really_free(rank) >= units for rank in ranks)

    def _first_due_now(self) -> Request | None:
        request = self._seats.first_due()
        if request is None or self._seats.get(request).start > self._room.now:
            return None
        return request

    def _start_in_room(self) -> Iterator[Start]:
        """The first in the queue whom any of the touched nodes has room for, then the next, until there is none."""
        while self._touched:
            found: list[tuple[int, int, tuple[int, ...]]] = []
            for rank in sorted(self._touched):
                first = self._first_on(rank)
                if first is None:
                    self._touched.discard(rank)
                else:
                    order, ranks = first
                    found.append((order, self._room.really_free(rank), ranks))
            if found:
                order, _, ranks = min(found)
                request = self._waiting.at(order)
                assert request is not None
                self._get_up(request)
                yield self._start(request, ranks, taken_until=self._room.now)

    def _first_on(self, rank: int) -> tuple[int, tuple[int, ...]] | None:
        """Of those who could start on that node now beside everybody else's place, the first in the queue: its order
        and its nodes."""
        candidates: list[int] = []
        line = self._room.timetable.lines[rank]
        free = self._room.really_free(rank)
        for units, zones in self._waiting.kinds():
            if units <= free and (zones is None or rank in self._grounds.at_home(zones)):
                order = self._waiting.first_within((units, zones), line.room_from(self._room.now, units))
                if order is not None:
                    candidates.append(order)
        for who in self._seats.at(rank):  # for them their own place is no obstacle
            request = self._waiting.find(who)
            if request is not None and request.node_count == 1 and self._fits_but_for_itself(request, rank):
                candidates.append(order_of(request))
        best = min(candidates, default=None)
        if line.units <= free:
            for order, gang in self._waiting.gangs():
                if best is not None and order > best:
                    break
                ranks = self._gang_on(gang, rank)
                if ranks is not None:
                    return order, ranks
        return None if best is None else (best, (rank,))

    def _fits_but_for_itself(self, request: Request, rank: int) -> bool:
        seat, duration = self._seats.get(request), length_of(request)
        return self._room.fits_but_for(seat, rank, request.units_per_node, duration)

    def _gang_on(self, gang: Request, rank: int) -> tuple[int, ...] | None:
        """The nodes on which it could start now, that one among them."""
        units, duration = gang.units_per_node, length_of(gang)
        line = self._room.timetable.lines[rank]
        if line.units != units:
            return None
        seat = self._seats.find(gang.reservation_id)
        own = () if seat is None else seat.ranks
        if line.room_from(self._room.now, units) < duration and rank not in own:
            return None
        ranks = self._room.timetable.open_now(units, duration)
        if gang.anchor is not None:
            ranks &= self._grounds.at_home(gang.anchor.zones)
        ranks.update(each for each in own if self._fits_but_for_itself(gang, each))
        fitting = sorted(each for each in ranks if self._room.really_free(each) >= units)
        if rank not in fitting or len(fitting) < gang.node_count:
            return None
        return tuple(fitting[: gang.node_count])

    def _get_up(self, request: Request) -> None:
        """Leaves its seat, if it has one: there is room then."""
        seat = self._seats.stand_up(request)
        if seat is not None:
            self._room.give_back(seat, request.units_per_node, length_of(request))
            self._touched.update(seat.ranks)

    def _start(self, request: Request, ranks: Sequence[int], taken_until: int) -> Start:
        """It has no seat any more."""
        self._waiting.remove(request)
        shares = tuple(
            Share(number, self._room.nodes[rank].name, request.units_per_node, self._room.choose(request, rank))
            for number, rank in enumerate(ranks)
        )
        until = self._moment(self._room.now + length_of(request))
        self._room.hold(Holding(request.reservation_id, request.gpu_type, shares, until), taken_until)
        return Start(request.reservation_id, shares)

    def _promises(self) -> dict[ReservationId, Wait]:
        """Everybody's place as they were told it; what is said in words does not matter."""
        names = [node.name for node in self._room.nodes]
        return {
            who: Wait(who, 0, self._moment(seat.start), tuple(names[rank] for rank in seat.ranks), "")
            for who, seat in self._seats
        }

    def _moment(self, time: int) -> datetime:
        return self._room.origin + timedelta(microseconds=time)

    def _wait(self, request: Request, place: Place | None) -> Wait:
        position = self._waiting.position(request)
        ends = {} if place is None else self._seats.ends_beside(place)
        return self._tell(request, place, position, self._room.free_now, ends)

    def _tell(
        self,
        request: Request,
        place: Place | None,
        position: int,
        free: FreeNow,
        ends: Ends,
    ) -> Wait:
        if place is None:
            reason = why_never(request, self._nodes, self._room.nodes)
            return Wait(request.reservation_id, position, None, (), reason)
        ending = next(filter(None, (self._room.ending_at(rank, place.start) for rank in place.ranks)), None)
        if ending is None:
            waiting = next((who for rank in place.ranks if (who := ends.get((rank, place.start)))), None)
            ending = None if waiting is None else Ending(waiting, waiting=True)
        best, whole = free(self._grounds.counted(request, place))
        moves = self._grounds.is_away(request, place)
        reason = why_not_now(request, best, whole.get(request.units_per_node, 0), position - 1, ending, moves=moves)
        names = tuple(self._room.nodes[rank].name for rank in place.ranks)
        return Wait(request.reservation_id, position, self._moment(place.start), names, reason)


def _alike(one: Request, other: Request) -> bool:
    """The same person's request: has anything changed that the plan depends on?"""
    return one is other or (
        one.duration == other.duration
        and one.priority == other.priority
        and one.turn == other.turn
        and one.seq == other.seq
        and one.units_per_node == other.units_per_node
        and one.node_count == other.node_count
        and one.anchor == other.anchor
    )
