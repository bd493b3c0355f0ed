"""A busy cluster of any size, always the same for the same numbers: for measuring the planner."""

import random
from datetime import timedelta
from uuid import UUID

from gpudev.domain.cluster import Allocation, Node, NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.plan import Request
from support.planner.situations import NOW

_PER_NODE = 8
_SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 3), (8, 4))
_SHARE_OF_SHAPES = (55, 18, 12, 11, 2, 1, 1)
"""Mostly small, some whole nodes, a few gangs."""


def busy_cluster(
    *, nodes: int, running: int, queued: int, types: tuple[str, ...] = ("h100",), seed: int = 1
) -> tuple[list[Node], list[Allocation], list[Request]]:
    dice = random.Random(seed)
    all_nodes = [Node(f"node-{at:05}", types[at % len(types)], _PER_NODE) for at in range(nodes)]
    return all_nodes, _holdings(dice, all_nodes, running), [_request(dice, at, types) for at in range(queued)]


def _holdings(dice: random.Random, nodes: list[Node], count: int) -> list[Allocation]:
    """Exactly so many: large ones only while enough is left for the rest to have one GPU each."""
    free = {node.name: list(range(node.units)) for node in nodes}
    spare = sum(node.units for node in nodes) - count
    holdings: list[Allocation] = []
    while len(holdings) < count:
        node = dice.choice(nodes)
        units = min(dice.choices((1, 2, 4, 8), (60, 20, 12, 8))[0], len(free[node.name]), spare + 1)
        if units:
            spare -= units - 1
            gpus, free[node.name] = tuple(free[node.name][:units]), free[node.name][units:]
            until = NOW + timedelta(seconds=dice.randrange(-60, 24 * 3600))
            holdings.append(Allocation(_id(dice), node.gpu_type, (NodeShare(0, node.name, units, gpus),), until))
    return holdings


def _request(dice: random.Random, seq: int, types: tuple[str, ...]) -> Request:
    units, node_count = dice.choices(_SHAPES, _SHARE_OF_SHAPES)[0]
    seconds = int(min(24 * 3600, max(60, dice.lognormvariate(8.5, 1.2))))
    return Request(_id(dice), seq, dice.choice(types), units, node_count, timedelta(seconds=seconds))


def _id(dice: random.Random) -> ReservationId:
    return ReservationId(UUID(int=dice.getrandbits(128)))
