"""Those who wait for one GPU type, in the queue's order: who is first among those whom a gap would do?

It answers without looking at everybody, so that a long queue costs little. It refuses to know nodes and places.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import length_of, queue_order
from gpudev.planning.queue.plan import Request
from gpudev.planning.windows import FOREVER, WindowIndex

_LOW = 1 << 64
_IDS = 1 << 128


def order_of(request: Request) -> int:
    """The queue's order as one number: the smaller is first."""
    priority, turn, seq, reservation_id = queue_order(request)
    return ((priority * _LOW + turn) * _LOW + seq) * _IDS + reservation_id.int


Alike = tuple[int, frozenset[str] | None]
"""Units of one node, and the zones in which; None: anywhere."""


def _alike(request: Request) -> Alike:
    return request.units_per_node, None if request.anchor is None else request.anchor.zones


class Waiting:
    def __init__(self, requests: Iterable[Request]) -> None:
        self._by_id = {request.reservation_id: request for request in requests}
        self._by_order = {order_of(request): request for request in self._by_id.values()}
        self._orders = sorted(self._by_order)
        self._gangs = [order for order in self._orders if self._by_order[order].node_count > 1]
        self._alike: dict[Alike, WindowIndex] = {}
        """Of those who need one node, by units and zones: the shorter one stays, the more gaps will do."""
        shortness: dict[Alike, list[tuple[int, int]]] = {}
        for order, request in self._by_order.items():
            if request.node_count == 1:
                shortness.setdefault(_alike(request), []).append((order, FOREVER - length_of(request)))
        for alike, own in shortness.items():
            self._alike[alike] = WindowIndex(own)

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
            index = self._alike.setdefault(_alike(request), WindowIndex(()))
            index.add(order, FOREVER - length_of(request))

    def remove(self, request: Request) -> None:
        order = order_of(request)
        del self._by_id[request.reservation_id], self._by_order[order]
        del self._orders[bisect_left(self._orders, order)]
        if request.node_count > 1:
            del self._gangs[bisect_left(self._gangs, order)]
        else:
            self._alike[_alike(request)].remove(order)

    def position(self, request: Request) -> int:
        return bisect_left(self._orders, order_of(request)) + 1

    def outranked_by(self, request: Request) -> bool:
        """Whether anybody waits whose priority is lower: its promise does not bind that one."""
        return bool(self._orders) and self._by_order[self._orders[-1]].priority < request.priority

    def kinds(self) -> Iterable[Alike]:
        """What those ask for who need one node."""
        return self._alike

    def first_within(self, alike: Alike, room: int) -> int | None:
        """The order of the first who asks for that and for no longer."""
        return self._alike[alike].first_at_least(FOREVER - min(room, FOREVER))

    def gangs(self) -> Iterator[tuple[int, Request]]:
        return ((order, self._by_order[order]) for order in self._gangs)
