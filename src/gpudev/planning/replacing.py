"""Replacing: whether a place that the cluster refuses is no longer what the plan took it for.

The plan is made from what was seen; in the same moment somebody else may take a GPU, or a node may close. Whoever was
placed there has done nothing wrong and gets another place. A place that looks free and is refused all the same is
another matter: something is in the way that no look shows, and a new plan would choose the same again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpudev.domain.cluster import Node
from gpudev.domain.cordon import describe_closed_node
from gpudev.domain.reservations.reservation import Reservation


def count_held_units(reservations: Iterable[Reservation]) -> Counter[str]:
    """By node, whoever holds them."""
    held: Counter[str] = Counter()
    for reservation in reservations:
        for share in reservation.shares if not reservation.is_released else ():
            held[share.node] += share.units
    return held


def find_placement_obstacle(reservation: Reservation, nodes: Mapping[str, Node], held: Mapping[str, int]) -> str | None:
    """What is in the way of its place, in words; None: nothing that can be seen. `held` includes its own."""
    for share in reservation.shares:
        node = nodes.get(share.node)
        if node is None:
            return f"node {share.node} is gone"
        if not node.ready:
            return f"node {share.node} does not answer"
        if not node.schedulable:
            return f"node {share.node} was {describe_closed_node(node)}"
        if node.foreign_units + held.get(share.node, 0) > node.units:
            return f"work that belongs to no reservation has taken what was free on node {share.node}"
    return None
