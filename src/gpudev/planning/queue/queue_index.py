"""Those who wait for one GPU type, in the queue's order: who is first among those whom a gap would do?

It answers without looking at everybody, so that a long queue costs little. It refuses to know nodes and places.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import duration_microseconds, queue_order
from gpudev.planning.queue.plan import Request
from gpudev.planning.windows import FOREVER, WindowIndex

_FIELD_RANGE = 1 << 64
_ID_RANGE = 1 << 128


def order_key(request: Request) -> int:
    """The queue's order as one number: the smaller is first."""
    priority, turn, seq, reservation_id = queue_order(request)
    return ((priority * _FIELD_RANGE + turn) * _FIELD_RANGE + seq) * _ID_RANGE + reservation_id.int


RequestShape = tuple[int, frozenset[str] | None]
"""Units of one node, and the zones in which; None: anywhere."""


def _shape_of(request: Request) -> RequestShape:
    return request.units_per_node, None if request.zone_constraint is None else request.zone_constraint.zones


class QueueIndex:
    def __init__(self, requests: Iterable[Request]) -> None:
        self._by_id = {request.reservation_id: request for request in requests}
        self._by_order = {order_key(request): request for request in self._by_id.values()}
        self._orders = sorted(self._by_order)
        self._gangs = [order for order in self._orders if self._by_order[order].node_count > 1]
        self._by_shape: dict[RequestShape, WindowIndex] = {}
        """Of those who need one node, by units and zones: the shorter one stays, the more gaps will do."""
        shortness: dict[RequestShape, list[tuple[int, int]]] = {}
        for order, request in self._by_order.items():
            if request.node_count == 1:
                shortness.setdefault(_shape_of(request), []).append((order, FOREVER - duration_microseconds(request)))
        for alike, own in shortness.items():
            self._by_shape[alike] = WindowIndex(own)

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[Request]:
        """In the queue's order."""
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
        """Whether anybody waits whose priority is lower: its promise does not bind that one."""
        return bool(self._orders) and self._by_order[self._orders[-1]].priority < request.priority

    def shapes(self) -> Iterable[RequestShape]:
        """What those ask for who need one node."""
        return self._by_shape

    def first_fitting(self, shape: RequestShape, gap: int) -> int | None:
        """The order of the first who asks for that and for no longer."""
        return self._by_shape[shape].first_at_least(FOREVER - min(gap, FOREVER))

    def gangs(self) -> Iterator[tuple[int, Request]]:
        return ((order, self._by_order[order]) for order in self._gangs)
