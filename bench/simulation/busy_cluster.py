"""A busy cluster of any size at one moment, deterministic: for measuring the planner's speed."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from gpudev.domain.cluster import Allocation, Node, NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.plan import Request

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
_UNITS = 8
_SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 3), (8, 4))
_SHARE_OF_SHAPES = (56, 17, 12, 11, 2.4, 0.8, 0.8)
_HOURS = (0.5, 1, 2, 3, 4, 6, 8, 8, 8, 12, 16, 24)


@dataclass(frozen=True, slots=True)
class Moment:
    nodes: list[Node]
    holdings: list[Allocation]
    queue: list[Request]
    began: dict[ReservationId, datetime]
    """When each allocation began."""


def busy_moment(*, nodes: int, running: int, queued: int, seed: int = 1) -> Moment:
    """Exactly this many run, spread over all nodes; some nodes stay whole, most have a few GPUs left."""
    dice = random.Random(seed)
    all_nodes = [Node(f"node-{number:05}", "h100", _UNITS) for number in range(nodes)]
    free = {node.name: _UNITS for node in all_nodes}
    holdings: list[Allocation] = []
    began: dict[ReservationId, datetime] = {}
    spare = nodes * _UNITS - running
    while len(holdings) < running:
        name = dice.choice(all_nodes).name
        units = min(dice.choices((1, 2, 4, 8), (60, 20, 12, 8))[0], free[name], spare + 1)
        if units:
            spare -= units - 1
            first = _UNITS - free[name]
            free[name] -= units
            reservation_id = ReservationId(UUID(int=1_000_000 + len(holdings)))
            requested = timedelta(hours=dice.choice(_HOURS))
            began[reservation_id] = NOW - requested * dice.random() * 0.9
            share = NodeShare(0, name, units, tuple(range(first, first + units)))
            holdings.append(Allocation(reservation_id, "h100", (share,), began[reservation_id] + requested))
    return Moment(all_nodes, holdings, [_request(dice, number) for number in range(queued)], began)


def _request(dice: random.Random, number: int) -> Request:
    units, nodes = dice.choices(_SHAPES, _SHARE_OF_SHAPES)[0]
    reservation_id = ReservationId(UUID(int=number))
    return Request(reservation_id, number, "h100", units, nodes, timedelta(hours=dice.choice(_HOURS)))
