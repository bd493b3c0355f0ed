"""Index of queued requests of one GPU type: finds the first in queue order that fits a gap.

It does not visit every request, and it does not know nodes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Set
from heapq import heappop, heappush

from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.fair_share import queue_order
from gpudev.planning.queue.node_timelines import FOREVER, TimeSlot, WindowIndex
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_input import duration_microseconds

_FIELD_RANGE = 1 << 64
_ID_RANGE = 1 << 128


def order_key(request: Request) -> int:
    """The queue order as one integer: smaller goes first."""
    priority, fair_rank, seq, reservation_id = queue_order(request)
    return ((priority * _FIELD_RANGE + fair_rank) * _FIELD_RANGE + seq) * _ID_RANGE + reservation_id.int


RequestShape = tuple[int, frozenset[str] | None]
"""Units of one node, and the allowed zones (None: any)."""


def _shape_of(request: Request) -> RequestShape:
    return request.units_per_node, None if request.zone_constraint is None else request.zone_constraint.zones


class QueueIndex:
    def __init__(self, requests: Iterable[Request]) -> None:
        self._by_id = {request.reservation_id: request for request in requests}
        self._by_order = {order_key(request): request for request in self._by_id.values()}
        self._orders = sorted(self._by_order)
        self._gangs = [order for order in self._orders if self._by_order[order].node_count > 1]
        self._by_shape: dict[RequestShape, WindowIndex] = {}
        """Single-node requests by shape. The window length is FOREVER minus the duration: shorter requests fit more
        gaps."""
        shortness: dict[RequestShape, list[tuple[int, int]]] = {}
        for order, request in self._by_order.items():
            if request.node_count == 1:
                shortness.setdefault(_shape_of(request), []).append((order, FOREVER - duration_microseconds(request)))
        for shape, own in shortness.items():
            self._by_shape[shape] = WindowIndex(own)

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[Request]:
        """In queue order."""
        return (self._by_order[order] for order in self._orders)

    def __contains__(self, reservation_id: object) -> bool:
        return reservation_id in self._by_id

    def find_request(self, reservation_id: ReservationId) -> Request | None:
        return self._by_id.get(reservation_id)

    def find_by_order(self, order: int) -> Request | None:
        return self._by_order.get(order)

    def add(self, request: Request) -> None:
        order = order_key(request)
        self._by_id[request.reservation_id] = request
        self._by_order[order] = request
        insort(self._orders, order)
        if request.node_count > 1:
            insort(self._gangs, order)
        else:
            index = self._by_shape.setdefault(_shape_of(request), WindowIndex(()))
            index.add(order, FOREVER - duration_microseconds(request))

    def remove(self, request: Request) -> None:
        order = order_key(request)
        del self._by_id[request.reservation_id], self._by_order[order]
        del self._orders[bisect_left(self._orders, order)]
        if request.node_count > 1:
            del self._gangs[bisect_left(self._gangs, order)]
        else:
            self._by_shape[_shape_of(request)].remove(order)

    def position(self, request: Request) -> int:
        return bisect_left(self._orders, order_key(request)) + 1

    def has_lower_priority(self, request: Request) -> bool:
        """Whether a request with a lower priority waits, whose promise does not bind this one."""
        return bool(self._orders) and self._by_order[self._orders[-1]].priority < request.priority

    def shapes(self) -> Iterable[RequestShape]:
        """Shapes of single-node requests."""
        return self._by_shape

    def first_fitting(self, shape: RequestShape, gap: int) -> int | None:
        """The order of the first request of this shape that fits the gap."""
        return self._by_shape[shape].first_at_least(FOREVER - min(gap, FOREVER))

    def gangs(self) -> Iterator[tuple[int, Request]]:
        return ((order, self._by_order[order]) for order in self._gangs)


# Planned starts of queued requests, indexed by reservation, node and start time.


SlotEnds = dict[tuple[int, int], ReservationId]
"""(rank, time) at which a planned reservation ends → the first such in queue order."""


class PlannedStarts:
    def __init__(self, queue: QueueIndex, node_count: int) -> None:
        self._queue = queue
        self._slots: dict[ReservationId, TimeSlot] = {}
        self._on_node: list[set[ReservationId]] = [set() for _ in range(node_count)]
        self._due: list[tuple[int, int]] = []
        """Heap of (start, order); outdated entries are dropped when they come up."""

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
        slot = self._slots.pop(request.reservation_id, None)
        for rank in slot.ranks if slot is not None else ():
            self._on_node[rank].discard(request.reservation_id)
        return slot

    def requests_on(self, rank: int) -> Set[ReservationId]:
        """Requests with a planned start on this node."""
        return self._on_node[rank]

    def first_due(self) -> Request | None:
        """The request with the earliest planned start."""
        while self._due:
            start, order = self._due[0]
            request = self._queue.find_by_order(order)
            slot = None if request is None else self._slots.get(request.reservation_id)
            if slot is not None and slot.start == start:
                return request
            heappop(self._due)
        return None

    def find_ends(self, requests: Iterable[Request]) -> SlotEnds:
        """Ends of those with a planned start. `requests`: in queue order."""
        ends: SlotEnds = {}
        for request in requests:
            slot = self._slots.get(request.reservation_id)
            if slot is not None:
                end = slot.start + duration_microseconds(request)
                for rank in slot.ranks:
                    ends.setdefault((rank, end), request.reservation_id)
        return ends

    def find_ends_on_nodes(self, slot: TimeSlot) -> SlotEnds:
        """Ends of requests planned on the slot's nodes."""
        neighbours = {reservation_id for rank in slot.ranks for reservation_id in self._on_node[rank]}
        known = (
            other for reservation_id in neighbours if (other := self._queue.find_request(reservation_id)) is not None
        )
        return self.find_ends(sorted(known, key=order_key))
