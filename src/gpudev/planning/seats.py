"""The places that were told to those who wait for one GPU type: whose it is, who is on a node, whose time comes first.

It refuses to know what is free: that a place can be had, and that it is free again, the timetable is told by others.
"""

from collections.abc import Iterable, Iterator, Set
from heapq import heappop, heappush

from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import duration_microseconds
from gpudev.planning.queue.node_timelines import TimeSlot
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_index import QueueIndex, order_key

SlotEnds = dict[tuple[int, int], ReservationId]
"""(Rank, time) at which somebody who waits has run, and the first of them in the queue."""


class PlannedStarts:
    def __init__(self, queue: QueueIndex, node_count: int) -> None:
        self._queue = queue
        self._slots: dict[ReservationId, TimeSlot] = {}
        self._on_node: list[set[ReservationId]] = [set() for _ in range(node_count)]
        self._due: list[tuple[int, int]] = []
        """(start, order) of places; those that were given up since are dropped when they come up."""

    def __iter__(self) -> Iterator[tuple[ReservationId, TimeSlot]]:
        return iter(self._slots.items())

    def get_slot(self, request: Request) -> TimeSlot:
        return self._slots[request.reservation_id]

    def find_slot(self, reservation_id: ReservationId) -> TimeSlot | None:
        return self._slots.get(reservation_id)

    def assign(self, request: Request, slot: TimeSlot) -> None:
        self._slots[request.reservation_id] = slot
        heappush(self._due, (slot.start, order_key(request)))
        for rank in slot.ranks:
            self._on_node[rank].add(request.reservation_id)

    def unassign(self, request: Request) -> TimeSlot | None:
        seat = self._slots.pop(request.reservation_id, None)
        for rank in seat.ranks if seat is not None else ():
            self._on_node[rank].discard(request.reservation_id)
        return seat

    def requests_on(self, rank: int) -> Set[ReservationId]:
        """Those who have a place on that node."""
        return self._on_node[rank]

    def first_due(self) -> Request | None:
        """The one whose place comes first."""
        while self._due:
            start, order = self._due[0]
            request = self._queue.find_by_order(order)
            seat = None if request is None else self._slots.get(request.reservation_id)
            if seat is not None and seat.start == start:
                return request
            heappop(self._due)
        return None

    def find_ends(self, requests: Iterable[Request]) -> SlotEnds:
        """Of those of them who have a place. They come in the queue's order."""
        ends: SlotEnds = {}
        for request in requests:
            seat = self._slots.get(request.reservation_id)
            if seat is not None:
                end = seat.start + duration_microseconds(request)
                for rank in seat.ranks:
                    ends.setdefault((rank, end), request.reservation_id)
        return ends

    def find_ends_on_nodes(self, slot: TimeSlot) -> SlotEnds:
        """Of those who have a place on one of its nodes."""
        neighbours = {who for rank in slot.ranks for who in self._on_node[rank]}
        known = (other for who in neighbours if (other := self._queue.find_request(who)) is not None)
        return self.find_ends(sorted(known, key=order_key))
