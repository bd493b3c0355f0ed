"""The planner's facts, sorted out by GPU type: which nodes offer anything, what is held on each and until when.

Here it is decided what counts: a node that is not ready, is cordoned or is not there offers nothing and promises
nothing; foreign work never ends; what should have ended is still there until it is seen to be gone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.capacity import Holding, Node, Share
from gpudev.domain.ids import ReservationId
from gpudev.planning.plan import Request
from gpudev.planning.timetable import Line

_SECONDS_PER_DAY = 86_400
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """One reservation's share of one node."""

    until: int
    """Microseconds from now; always in the future."""
    overdue: bool
    share: Share
    reservation_id: ReservationId

    @property
    def units(self) -> int:
        return max(self.share.units, len(self.share.gpu_indices))


@dataclass(frozen=True, slots=True)
class TypeFacts:
    gpu_type: str
    now: datetime
    known: Sequence[Node]
    """All nodes of the type, whatever their state."""
    nodes: Sequence[Node]
    """Those that offer, by name: a node's rank is its place here."""
    held: Sequence[Sequence[Held]]
    """By rank."""

    def lines(self) -> list[Line]:
        return [
            Line(rank, node.units, lasting_units(node), [(held.until, held.units) for held in self.held[rank]])
            for rank, node in enumerate(self.nodes)
        ]


def lasting_units(node: Node) -> int:
    """What is left of a node when every reservation has ended."""
    return node.units - max(node.foreign_units, len(node.foreign_indices))


def microseconds(span: timedelta) -> int:
    return (span.days * _SECONDS_PER_DAY + span.seconds) * _MICROSECONDS + span.microseconds


def by_type(
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
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
    held = _held_by_node((node for same in known.values() for node in same), holdings, now, margin)
    for gpu_type in sorted(requests):
        offering = sorted((node for node in known[gpu_type] if node.offers), key=lambda node: node.name)
        facts = TypeFacts(gpu_type, now, known[gpu_type], offering, [held[node.name] for node in offering])
        yield facts, requests[gpu_type]


def queue_order(request: Request) -> tuple[int, int, ReservationId]:
    return (-request.priority, request.seq, request.reservation_id)


def _held_by_node(
    nodes: Iterable[Node], holdings: Sequence[Holding], now: datetime, margin: timedelta
) -> dict[str, list[Held]]:
    held: dict[str, list[Held]] = {node.name: [] for node in nodes}
    cleared_by = max(1, microseconds(margin))
    for holding in holdings:
        left = 0 if holding.until is None else microseconds(holding.until - now)
        overdue = left <= 0
        for share in holding.shares:
            if share.node in held:
                held[share.node].append(Held(cleared_by if overdue else left, overdue, share, holding.reservation_id))
    return held
