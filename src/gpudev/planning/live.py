"""The plan of one GPU type, kept alive: what one arrival or one end changes costs milliseconds, however long the queue.

Between two full plans everybody keeps their place; room that appears is given, in the queue's order, to whoever can
start on it at once without touching anybody else's place. Nobody is planned later than told because of that, and
nobody waits who could start. Only a full plan lets those move up who cannot start yet (`replan`).

Time moves between calls. A place whose time has come is taken (`wake`); what should have been released and is still
there is never planned over. Where the facts have left the plan (a node changed, an end was missed or moved onto
somebody's place, much happened at once) a full plan is made, with the places so far as promises.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush

from gpudev.domain.capacity import Holding, Node, Share
from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import length_of, microseconds, of_one_type
from gpudev.planning.plan import Plan, Request, Start, Wait
from gpudev.planning.queueing import DEFAULT_MARGIN, make_type_plan
from gpudev.planning.reasons import Ending, why_never, why_not_now
from gpudev.planning.room import Room
from gpudev.planning.timetable import Place
from gpudev.planning.waiting import Waiting, order_of

_MANY = 32
"""So many changes at once are cheaper to answer with a full plan."""

_AGAIN = 1_000_000
"""Microseconds."""


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
        due = self._first_due()
        if due is None:
            return None
        start = self._seats[due.reservation_id].start
        return self._moment(start if start > self._room.now else self._room.now + _AGAIN)

    def arrive(self, request: Request, now: datetime) -> Start | Wait:
        """Gives it the earliest place beside everybody else's."""
        self._advance(now)
        self._face_the_overdue(now)
        timetable, duration = self._room.timetable, length_of(request)
        timetable.ensure_size(request.units_per_node)
        place = timetable.find(request.units_per_node, request.node_count, duration)
        self._waiting.add(request)
        if place is None:
            return self._wait(request, None)
        if place.start <= self._room.now and self._is_there(place.ranks, request.units_per_node):
            return self._start(request, place.ranks, taken_until=self._room.now)
        timetable.take(place, request.units_per_node, duration)
        self._sit(request, place)
        return self._wait(request, place)

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
        if late is not None and self._seats[late.reservation_id].start < self._room.now:
            self.replan(now)
            starts += self._start_due()
        return (*starts, *self._start_in_room())

    def replan(self, now: datetime) -> None:
        """A full plan from what is known: everybody moves up who can. To be followed by a `wake`."""
        self._make(self._nodes, list(self._room.held.values()), list(self._waiting), now, self._promises())

    def turn(self, nodes: Sequence[Node], holdings: Sequence[Holding], queue: Sequence[Request], now: datetime) -> Turn:
        """Takes over everything that is true now, by what changed if that is little."""
        full_plans = self._full_plans
        held = {holding.reservation_id: holding for holding in holdings}
        asked = {request.reservation_id: request for request in queue}
        gone = [who for who in self._room.held if who not in held]
        gone += [request.reservation_id for request in self._waiting if request.reservation_id not in asked]
        came = [request for who, request in asked.items() if who not in self._waiting]
        answers: list[Start | Wait] = []
        if len(gone) + len(came) <= _MANY and self._are_as_known(nodes, held, asked) and self._move_ends(held, now):
            for who in gone:
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
        best, whole = self._room.most_free(), self._room.whole_nodes()
        for position, request in enumerate(self._waiting, 1):
            yield self._tell(request, self._seats.get(request.reservation_id), position, best, whole)

    def wait_of(self, reservation_id: ReservationId) -> Wait | None:
        request = self._waiting.find(reservation_id)
        return None if request is None else self._wait(request, self._seats.get(reservation_id))

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
        self._waiting = Waiting(request for request in queue if request.gpu_type == self._gpu_type)
        type_plan = make_type_plan(facts, list(self._waiting), promises)
        self._room = Room(facts, type_plan.timetable, holdings, microseconds(self._margin))
        self._seats: dict[ReservationId, Place] = {}
        self._seats_at: list[set[ReservationId]] = [set() for _ in facts.nodes]
        self._due: list[tuple[int, int]] = []
        """(start, order) of places; those that were given up since are dropped when they come up."""
        for request in self._waiting:
            place = type_plan.seats.get(request.reservation_id)
            if place is not None:
                self._sit(request, place)
        self._touched: set[int] = set()
        """Nodes on which there may be room for somebody."""

    def _advance(self, now: datetime) -> None:
        self._room.advance(microseconds(now - self._room.origin))

    def _face_the_overdue(self, now: datetime) -> None:
        """Comes after everybody who is gone was let go."""
        if not self._room.keep_the_overdue():
            self.replan(now)

    def _are_as_known(
        self,
        nodes: Sequence[Node],
        held: Mapping[ReservationId, Holding],
        asked: Mapping[ReservationId, Request],
    ) -> bool:
        """Except for who came and who is gone, and until when somebody stays."""
        known = self._room.held
        return (
            tuple(nodes) == self._nodes
            and all(who in known and holding.shares == known[who].shares for who, holding in held.items())
            and all(asked.get(request.reservation_id, request) == request for request in self._waiting)
            and held.keys().isdisjoint(asked)
        )

    def _move_ends(self, held: Mapping[ReservationId, Holding], now: datetime) -> bool:
        """False: somebody stays longer than others were told."""
        self._advance(now)
        moved = [holding for who, holding in held.items() if holding.until != self._room.held[who].until]
        return all(self._room.move_end(holding) for holding in moved)

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
            seat, duration = self._seats[request.reservation_id], length_of(request)
            planned, units = seat.start + duration, request.units_per_node
            beyond = Place(planned, seat.ranks)  # it starts late, and so it ends late
            if not self._is_there(seat.ranks, units):
                return
            if seat.start < self._room.now and not self._room.timetable.is_free(
                beyond, units, self._room.now - seat.start
            ):
                return
            self._stand_up(request)
            yield self._start(request, seat.ranks, taken_until=planned)

    def _is_there(self, ranks: Sequence[int], units: int) -> bool:
        """Not only by the plan."""
        return all(self._room.really_free(rank) >= units for rank in ranks)

    def _first_due_now(self) -> Request | None:
        request = self._first_due()
        if request is None or self._seats[request.reservation_id].start > self._room.now:
            return None
        return request

    def _first_due(self) -> Request | None:
        while self._due:
            start, order = self._due[0]
            request = self._waiting.at(order)
            seat = None if request is None else self._seats.get(request.reservation_id)
            if seat is not None and seat.start == start:
                return request
            heappop(self._due)
        return None

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
        for units in self._waiting.sizes():
            if units <= free:
                order = self._waiting.first_within(units, line.room_from(self._room.now, units))
                if order is not None:
                    candidates.append(order)
        for who in self._seats_at[rank]:  # for them their own place is no obstacle
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
        seat, duration = self._seats[request.reservation_id], length_of(request)
        return self._room.fits_but_for(seat, rank, request.units_per_node, duration)

    def _gang_on(self, gang: Request, rank: int) -> tuple[int, ...] | None:
        """The nodes on which it could start now, that one among them."""
        units, duration = gang.units_per_node, length_of(gang)
        line = self._room.timetable.lines[rank]
        if line.units != units:
            return None
        seat = self._seats.get(gang.reservation_id)
        own = () if seat is None else seat.ranks
        if line.room_from(self._room.now, units) < duration and rank not in own:
            return None
        ranks = self._room.timetable.open_now(units, duration)
        ranks.update(each for each in own if self._fits_but_for_itself(gang, each))
        fitting = sorted(each for each in ranks if self._room.really_free(each) >= units)
        if rank not in fitting or len(fitting) < gang.node_count:
            return None
        return tuple(fitting[: gang.node_count])

    def _sit(self, request: Request, place: Place) -> None:
        """The timetable has it already."""
        self._seats[request.reservation_id] = place
        heappush(self._due, (place.start, order_of(request)))
        for rank in place.ranks:
            self._seats_at[rank].add(request.reservation_id)

    def _stand_up(self, request: Request) -> Place | None:
        """The timetable still has it."""
        seat = self._seats.pop(request.reservation_id, None)
        for rank in seat.ranks if seat is not None else ():
            self._seats_at[rank].discard(request.reservation_id)
        return seat

    def _get_up(self, request: Request) -> None:
        """Leaves its seat, if it has one: there is room then."""
        seat = self._stand_up(request)
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
            for who, seat in self._seats.items()
        }

    def _moment(self, time: int) -> datetime:
        return self._room.origin + timedelta(microseconds=time)

    def _wait(self, request: Request, place: Place | None) -> Wait:
        position = self._waiting.position(request)
        return self._tell(request, place, position, self._room.most_free(), self._room.whole_nodes())

    def _tell(self, request: Request, place: Place | None, position: int, best: int, whole: Mapping[int, int]) -> Wait:
        if place is None:
            reason = why_never(request, self._nodes, self._room.nodes)
            return Wait(request.reservation_id, position, None, (), reason)
        reason = why_not_now(
            request, best, whole.get(request.units_per_node, 0), position - 1, self._ending_before(place)
        )
        names = tuple(self._room.nodes[rank].name for rank in place.ranks)
        return Wait(request.reservation_id, position, self._moment(place.start), names, reason)

    def _ending_before(self, place: Place) -> Ending | None:
        for rank in place.ranks:
            ending = self._room.ending_at(rank, place.start)
            if ending is not None:
                return ending
        for rank in place.ranks:
            for who in sorted(self._seats_at[rank]):
                request = self._waiting.find(who)
                if request is not None and self._seats[who].start + length_of(request) == place.start:
                    return Ending(who, waiting=True)
        return None
