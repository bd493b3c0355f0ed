"""Situations for the planner's tests: short words to write one down, and hypothesis strategies to invent many.

Invented ones keep numbers small (few nodes, whole hours, counts that collide) because bugs live in ties and tight
fits, not in variety.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import strategies as st

from gpudev.domain.cluster import Allocation, Node, NodeShare, ZoneConstraint
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.plan import Request

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MARGIN = timedelta(seconds=30)


def rid(number: int) -> ReservationId:
    """Ids whose first eight digits tell them apart."""
    return ReservationId(UUID(int=number << 96))


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def h100(name: str, units: int = 8, **state: object) -> Node:
    return Node(name, "h100", units, **state)  # type: ignore[arg-type]


def held(
    number: int, until_hours: float | None, *shares: tuple[str, Sequence[int]], gpu_type: str = "h100"
) -> Allocation:
    """Shares are (node, GPU indices)."""
    return Allocation(
        rid(number),
        gpu_type,
        tuple(NodeShare(rank, node, len(gpus), tuple(gpus)) for rank, (node, gpus) in enumerate(shares)),
        None if until_hours is None else NOW + hours(until_hours),
    )


def ask(
    number: int,
    units: int,
    long: float = 1,
    *,
    nodes: int = 1,
    gpu_type: str = "h100",
    priority: int = 0,
    anchor: ZoneConstraint | None = None,
) -> Request:
    """The number is id and order of arrival in one. Asking a cpu type for units means slots."""
    is_cpu = gpu_type.startswith("cpu")
    return Request(
        rid(number), number, gpu_type, units, nodes, hours(long), priority, slots=is_cpu, zone_constraint=anchor
    )


def disk_in(*zones: str, move: timedelta | None = None) -> ZoneConstraint:
    return ZoneConstraint("data", frozenset(zones), move)


@dataclass(frozen=True)
class Situation:
    nodes: tuple[Node, ...]
    holdings: tuple[Allocation, ...]
    queue: tuple[Request, ...]
    now: datetime = NOW
    margin: timedelta = MARGIN

    def ordered(self) -> list[Request]:
        return sorted(self.queue, key=lambda request: (-request.priority, request.seq))

    def ahead_of(self, request: Request) -> tuple[Request, ...]:
        order = self.ordered()
        return tuple(other for other in order[: order.index(request)] if other.gpu_type == request.gpu_type)

    def with_queue(self, queue: Sequence[Request]) -> "Situation":
        return replace(self, queue=tuple(queue))


_ANCHORS = st.sampled_from(
    [
        *[None] * 5,
        disk_in("zone-a"),
        disk_in("zone-b"),
        disk_in("zone-a", "zone-b"),
        disk_in("zone-c"),
        disk_in("zone-a", move=timedelta(minutes=1)),
        disk_in("zone-b", move=hours(1.5)),
    ]
)
"""Most have no disk; of the others some could be moved, in no time or in longer than many would wait."""
_HOURS = st.sampled_from([0.5, 1, 1, 2, 2, 3, 4, 6])


@st.composite
def _nodes(draw: st.DrawFn) -> list[Node]:
    """Mostly alike, as in life; sometimes of another size, down, cordoned or used by strangers."""
    nodes = []
    for number in range(draw(st.integers(1, 5))):
        gpu_type = draw(st.sampled_from(["h100", "h100", "h100", "t4", "cpu-x86"]))
        units = 3 if gpu_type == "cpu-x86" else draw(st.sampled_from([4, 4, 4, 4, 8]))
        strange = frozenset(
            draw(st.sets(st.integers(0, units - 1), max_size=2)) if draw(st.integers(0, 5)) == 0 else ()
        )
        nodes.append(
            Node(
                name=f"node-{number}",
                gpu_type=gpu_type,
                units=units,
                ready=draw(st.integers(0, 9)) > 0,
                schedulable=draw(st.integers(0, 9)) > 0,
                foreign_units=len(strange),
                foreign_indices=frozenset() if gpu_type == "cpu-x86" else strange,
                zone=draw(st.sampled_from(["zone-a", "zone-a", "zone-b", None])),
            )
        )
    return nodes


@st.composite
def _holdings(draw: st.DrawFn, nodes: Sequence[Node]) -> list[Allocation]:
    """Each on GPUs that nobody else has; some are overdue, some are being torn down, some hold whole nodes."""
    free = {
        node.name: [index for index in range(node.units) if index not in node.foreign_indices][
            : node.units - node.foreign_units
        ]
        for node in nodes
    }
    holdings = []
    for number in range(draw(st.integers(0, 7))):
        node = draw(st.sampled_from(list(nodes)))
        if not free[node.name]:
            continue
        units = 1 if node.gpu_type == "cpu-x86" else draw(st.integers(1, len(free[node.name])))
        gpus, free[node.name] = free[node.name][:units], free[node.name][units:]
        shares = [NodeShare(0, node.name, units, () if node.gpu_type == "cpu-x86" else tuple(gpus))]
        until = draw(st.one_of(st.none(), st.sampled_from([-1, 0, 0.005, 1, 1, 2, 2, 3, 5, 8])))
        holdings.append(
            Allocation(rid(1000 + number), node.gpu_type, tuple(shares), None if until is None else NOW + hours(until))
        )
    if draw(st.integers(0, 4)) == 0:
        holdings.append(held(2000, 2, ("vanished-node", [0, 1])))
    return holdings


@st.composite
def _requests(draw: st.DrawFn, at_most: int) -> list[Request]:
    requests = []
    for number in range(1, 1 + draw(st.integers(0, at_most))):
        gpu_type = draw(st.sampled_from(["h100", "h100", "h100", "h100", "t4", "cpu-x86"]))
        gang = gpu_type == "h100" and draw(st.integers(0, 4)) == 0
        units = 1 if gpu_type == "cpu-x86" else 4 if gang else draw(st.sampled_from([1, 1, 2, 2, 4, 8]))
        nodes = draw(st.sampled_from([2, 2, 3])) if gang else 1
        long, priority = draw(_HOURS), draw(st.sampled_from([0, 0, 0, 0, 1]))
        anchor = draw(_ANCHORS)
        requests.append(ask(number, units, long, nodes=nodes, gpu_type=gpu_type, priority=priority, anchor=anchor))
    return requests


@st.composite
def situations(draw: st.DrawFn, at_most: int = 8) -> Situation:
    nodes = draw(_nodes())
    return Situation(tuple(nodes), tuple(draw(_holdings(nodes))), tuple(draw(_requests(at_most))))
