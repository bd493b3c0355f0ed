"""The places that were told to those who wait for one GPU type: whose it is, who is on a node, whose time comes first.

It refuses to know what is free: that a place can be had, and that it is free again, the timetable is told by others.
"""

from collections.abc import Iterable, Iterator, Set
from heapq import heappop, heappush

from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import length_of
from gpudev.planning.queue.node_timelines import Place
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_index import Waiting, order_of

Ends = dict[tuple[int, int], ReservationId]
"""(Rank, time) at which somebody who waits has run, and the first of them in the queue."""


class Seats:
    def __init__(self, waiting: Waiting, node_count: int) -> None:
        self._waiting = waiting
        self._of: dict[ReservationId, Place] = {}
        self._at: list[set[ReservationId]] = [set() for _ in range(node_count)]
        self._due: list[tuple[int, int]] = []
        """(start, order) of places; those that were given up since are dropped when they come up."""

    def __iter__(self) -> Iterator[tuple[ReservationId, Place]]:
        return iter(self._of.items())

    def get(self, request: Request) -> Place:
        return self._of[request.reservation_id]

    def find(self, reservation_id: ReservationId) -> Place | None:
        return self._of.get(reservation_id)

    def sit(self, request: Request, place: Place) -> None:
        self._of[request.reservation_id] = place
        heappush(self._due, (place.start, order_of(request)))
        for rank in place.ranks:
            self._at[rank].add(request.reservation_id)

    def stand_up(self, request: Request) -> Place | None:
        seat = self._of.pop(request.reservation_id, None)
        for rank in seat.ranks if seat is not None else ():
            self._at[rank].discard(request.reservation_id)
        return seat

    def at(self, rank: int) -> Set[ReservationId]:
        """Those who have a place on that node."""
        return self._at[rank]

    def first_due(self) -> Request | None:
        """The one whose place comes first."""
        while self._due:
            start, order = self._due[0]
            request = self._waiting.at(order)
            seat = None if request is None else self._of.get(request.reservation_id)
            if seat is not None and seat.start == start:
                return request
            heappop(self._due)
        return None

    def ends(self, requests: Iterable[Request]) -> Ends:
        """Of those of them who have a place. They come in the queue's order."""
        ends: Ends = {}
        for request in requests:
            seat = self._of.get(request.reservation_id)
            if seat is not None:
                end = seat.start + length_of(request)
                for rank in seat.ranks:
                    ends.setdefault((rank, end), request.reservation_id)
        return ends

    def ends_beside(self, place: Place) -> Ends:
        """Of those who have a place on one of its nodes."""
        neighbours = {who for rank in place.ranks for who in self._at[rank]}
        known = (other for who in neighbours if (other := self._waiting.find(who)) is not None)
        return self.ends(sorted(known, key=order_of))
