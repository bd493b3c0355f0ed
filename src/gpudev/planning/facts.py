"""The planner's facts, sorted out by GPU type: which nodes offer anything, what is held on each and until when.

Here it is decided what counts: a node that is not ready, is cordoned or is not there offers nothing and promises
nothing; foreign work never ends; what should have ended is still there until it is seen to be gone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.node_timelines import NodeTimeline
from gpudev.planning.queue.plan import Request

_SECONDS_PER_DAY = 86_400
_MICROSECONDS = 1_000_000


class HeldShare(NamedTuple):
    """One reservation's share of one node. (A tuple, because thousands are made for every plan.)"""

    until: int
    """Microseconds from now; always in the future."""
    units: int
    gpu_indices: tuple[int, ...]
    reservation_id: ReservationId
    overdue: bool


@dataclass(frozen=True, slots=True)
class TypeFacts:
    gpu_type: str
    now: datetime
    all_nodes: Sequence[Node]
    """All nodes of the type, whatever their state."""
    nodes: Sequence[Node]
    """Those that offer, by name: a node's rank is its place here."""
    held: Sequence[Sequence[HeldShare]]
    """By rank."""

    def timelines(self) -> list[NodeTimeline]:
        return [
            NodeTimeline(rank, node.units, reservable_units(node), [held[:2] for held in self.held[rank]])
            for rank, node in enumerate(self.nodes)
        ]


def reservable_units(node: Node) -> int:
    """What is left of a node when every reservation has ended."""
    return node.units - max(node.foreign_units, len(node.foreign_indices))


def to_microseconds(span: timedelta) -> int:
    return (span.days * _SECONDS_PER_DAY + span.seconds) * _MICROSECONDS + span.microseconds


def duration_microseconds(request: Request) -> int:
    """In microseconds; nothing takes no time at all."""
    return max(1, to_microseconds(request.duration))


def split_by_type(
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    queue: Sequence[Request],
    now: datetime,
    margin: timedelta,
) -> Iterator[tuple[TypeFacts, list[Request]]]:
    """For every type that is asked for: its facts, and its requests in the queue's order."""
    requests: dict[str, list[Request]] = {}
    for request in sorted(queue, key=queue_order):
        requests.setdefault(request.gpu_type, []).append(request)
    known: dict[str, list[Node]] = {gpu_type: [] for gpu_type in requests}
    for node in nodes:
        if node.gpu_type in known:
            known[node.gpu_type].append(node)
    held = _held_by_node((node for same in known.values() for node in same), allocations, now, margin)
    for gpu_type in sorted(requests):
        yield _make_type_facts(gpu_type, known[gpu_type], held, now), requests[gpu_type]


def gather_type_facts(
    gpu_type: str, nodes: Sequence[Node], allocations: Sequence[Allocation], now: datetime, margin: timedelta
) -> TypeFacts:
    """The same for one type, whether anybody asks for it or not."""
    known = [node for node in nodes if node.gpu_type == gpu_type]
    return _make_type_facts(gpu_type, known, _held_by_node(known, allocations, now, margin), now)


def _make_type_facts(
    gpu_type: str, all_nodes: list[Node], held: Mapping[str, list[HeldShare]], now: datetime
) -> TypeFacts:
    offering = sorted((node for node in all_nodes if node.offers), key=lambda node: node.name)
    return TypeFacts(gpu_type, now, all_nodes, offering, [held[node.name] for node in offering])


def queue_order(request: Request) -> tuple[int, int, int, ReservationId]:
    return (-request.priority, request.fair_rank, request.seq, request.reservation_id)


def _held_by_node(
    nodes: Iterable[Node], allocations: Sequence[Allocation], now: datetime, margin: timedelta
) -> dict[str, list[HeldShare]]:
    held: dict[str, list[HeldShare]] = {node.name: [] for node in nodes}
    cleared_by = max(1, to_microseconds(margin))
    for holding in allocations:
        left = 0 if holding.until is None else to_microseconds(holding.until - now)
        overdue = left <= 0
        until = cleared_by if overdue else left
        for share in holding.shares:
            if share.node in held:
                # Facts that contradict each other are counted the careful way.
                units = max(share.units, len(share.gpu_indices))
                held[share.node].append(HeldShare(until, units, share.gpu_indices, holding.reservation_id, overdue))
    return held
