"""Nodes that an operator has closed for new work. What runs there goes on; nothing new is started or promised there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpudev.domain.cluster import Node
from gpudev.domain.errors import Invalid

_MAX_REASON_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Cordon:
    node: str
    by: str
    reason: str
    """For everybody who waits; may be empty."""
    at: datetime


def check_cordon_reason(reason: str) -> str:
    """It is shown in terminals, so nothing in it may move a cursor."""
    if len(reason) > _MAX_REASON_LENGTH or not reason.isprintable():
        raise Invalid(f"a reason is one line of at most {_MAX_REASON_LENGTH} printable characters", field="reason")
    return reason.strip()


def apply_cordons(nodes: Iterable[Node], cordons: Mapping[str, Cordon]) -> tuple[Node, ...]:
    """The nodes as the cluster shows them, less what operators have closed."""
    return tuple(
        node
        if (cordon := cordons.get(node.name)) is None
        else replace(node, schedulable=False, closed_because=cordon.reason)
        for node in nodes
    )


def describe_closed_node(node: Node) -> str:
    """In words, to follow the node's name and a verb."""
    return f"closed for new work: {node.closed_because}" if node.closed_because else "closed for new work"
