"""Those who wait for one GPU type, in the queue's order: who is first among those whom a gap would do?

It answers without looking at everybody, so that a long queue costs little. It refuses to know nodes and places.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import length_of, queue_order
from gpudev.planning.plan import Request
from gpudev.planning.windows import FOREVER, WindowIndex

_LOW = 1 << 64
_IDS = 1 << 128


def order_of(request: Request) -> int:
    """The queue's order as one number: the smaller is first."""
    priority, turn, seq, reservation_id = queue_order(request)
    return ((priority * _LOW + turn) * _LOW + seq) * _IDS + reservation_id.int


class Waiting:
    def __init__(self, requests: Iterable[Request]) -> None:
        self._by_id = {request.reservation_id: request for request in requests}
        self._by_order = {order_of(request): request for request in self._by_id.values()}
        self._orders = sorted(self._by_order)
        self._gangs = [order for order in self._orders if self._by_order[order].node_count > 1]
        self._by_size: dict[int, WindowIndex] = {}
        """Of those who need one node, by units: the shorter one stays, the more gaps will do."""
        shortness: dict[int, list[tuple[int, int]]] = {}
        for order, request in self._by_order.items():
            if request.node_count == 1:
                shortness.setdefault(request.units_per_node, []).append((order, FOREVER - length_of(request)))
        for units, own in shortness.items():
            self._by_size[units] = WindowIndex(own)

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[Request]:
        """In the queue's order."""
        return (self._by_order[order] for order in self._orders)

    def __contains__(self, reservation_id: object) -> bool:
        return reservation_id in self._by_id

    def find(self, reservation_id: ReservationId) -> Request | None:
        return self._by_id.get(reservation_id)

    def at(self, order: int) -> Request | None:
        return self._by_order.get(order)

    def add(self, request: Request) -> None:
        order = order_of(request)
        self._by_id[request.reservation_id] = request
        self._by_order[order] = request
        insort(self._orders, order)
        if request.node_count > 1:
            insort(self._gangs, order)
        else:
            index = self._by_size.setdefault(request.units_per_node, WindowIndex(()))
            index.add(order, FOREVER - length_of(request))

    def remove(self, request: Request) -> None:
        order = order_of(request)
        del self._by_id[request.reservation_id], self._by_order[order]
        del self._orders[bisect_left(self._orders, order)]
        if request.node_count > 1:
            del self._gangs[bisect_left(self._gangs, order)]
        else:
            self._by_size[request.units_per_node].remove(order)

    def position(self, request: Request) -> int:
        return bisect_left(self._orders, order_of(request)) + 1

    def outranked_by(self, request: Request) -> bool:
        """Whether anybody waits whose priority is lower: its promise does not bind that one."""
        return bool(self._orders) and self._by_order[self._orders[-1]].priority < request.priority

    def sizes(self) -> Iterable[int]:
        """The units that those ask for who need one node."""
        return self._by_size

    def first_within(self, units: int, room: int) -> int | None:
        """The order of the first who needs so many units of one node for no longer than that."""
        return self._by_size[units].first_at_least(FOREVER - min(room, FOREVER))

    def gangs(self) -> Iterator[tuple[int, Request]]:
        return ((order, self._by_order[order]) for order in self._gangs)
