"""Start quotes: the estimate for a newcomer, for every shape people ask for.

Computed with the plan, so that a newcomer gets an answer without another planning run.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.cluster import MAX_NODES, Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, StartQuote
from gpudev.planning.queue.fair_share import queue_order
from gpudev.planning.queue.forecasting import TypeForecast
from gpudev.planning.queue.node_timelines import FOREVER, TimeSlot, Timetable
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.planner import DEFAULT_MARGIN, plan_last, plan_type
from gpudev.planning.queue.queue_input import TypeFacts, split_by_type, to_microseconds

_QUOTED_HOURS = (0.5, 1, 2, 4, 8, 12, 24, 48)
"""Whoever asks for something between is told what the next longer one would be told."""


def request_sizes(facts: TypeFacts) -> list[int]:
    """Units per node that can be asked for: powers of two, and whole nodes."""
    largest = max((node.units for node in facts.nodes), default=0)
    return sorted({size for size in (1, 2, 4, 8, 16) if size <= largest} | {largest} - {0})


def quote_starts(
    facts: TypeFacts,
    planned: Mapping[ReservationId, Start | Queued],
    requests: Sequence[Request],
    forecast: TypeForecast,
    around: timedelta,
) -> Iterator[StartQuote]:
    """`seats`: everybody's place as planned; `around`: what the plan adds to the hours that are asked for."""
    sizes = request_sizes(facts)
    if not sizes:
        return
    timetable = build_timetable(facts, planned, requests, sizes)
    whole = sizes[-1]
    for units, node_count in [*((size, 1) for size in sizes), *((whole, count) for count in range(2, MAX_NODES + 1))]:
        for duration in (*(timedelta(hours=hours) + around for hours in _QUOTED_HOURS), None):
            place = timetable.find_slot(units, node_count, FOREVER if duration is None else to_microseconds(duration))
            if place is None:
                continue
            latest = facts.now + timedelta(microseconds=place.start)
            told = None if duration is None else forecast.forecast_newcomer(units, node_count, duration, latest)
            yield StartQuote(units, node_count, duration, latest, told.interval if told else None)


def build_timetable(
    facts: TypeFacts, planned: Mapping[ReservationId, Start | Queued], requests: Sequence[Request], sizes: Sequence[int]
) -> Timetable:
    """The nodes over time, with everybody in their place."""
    timetable = Timetable(facts.timelines(), [*sizes, *(request.units_per_node for request in requests)])
    ranks = {node.name: rank for rank, node in enumerate(facts.nodes)}
    for request in requests:
        place = _slot_of(facts, planned.get(request.reservation_id), ranks)
        if place is not None:
            timetable.take(place, request.units_per_node, max(1, to_microseconds(request.duration)))
    return timetable


def _slot_of(facts: TypeFacts, decision: Start | Queued | None, ranks: Mapping[str, int]) -> TimeSlot | None:
    match decision:
        case Start(_, shares):
            start, names = 0, tuple(share.node for share in shares)
        case Queued(_, estimate) if estimate.latest is not None:
            start, names = max(0, to_microseconds(estimate.latest - facts.now)), estimate.nodes
        case _:
            return None
    if not names or not all(name in ranks for name in names):
        return None
    return TimeSlot(start, tuple(ranks[name] for name in names))


# The answer to a submit: where a newcomer stands before the processor has looked at it. The very plan of the
# queue, made only as far as the newcomer: what is behind it or of another type cannot matter.


def estimate_newcomer(
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    queue: Sequence[Request],
    newcomer: Request,
    now: datetime,
    *,
    margin: timedelta = DEFAULT_MARGIN,
    promises: Mapping[ReservationId, Estimate] | None = None,
) -> Start | Queued:
    """`queue` may hold the newcomer already; it is counted once. `promises`: what those who wait were told."""
    place = queue_order(newcomer)
    ahead = [other for other in queue if other.gpu_type == newcomer.gpu_type and queue_order(other) < place]
    ((facts, requests),) = split_by_type(nodes, allocations, [*ahead, newcomer], now, margin)
    if not promises:
        return plan_last(facts, requests)
    *_, last = plan_type(facts, requests, promises)
    return last
