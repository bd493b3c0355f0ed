"""Start quotes for newcomers: for every shape with the plan, and for one new request.

Quotes are computed with the plan, so that the API can answer a newcomer without planning again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import MAX_NODES, Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, QueuePlan, StartQuote, TimeInterval
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.fair_share import queue_order
from gpudev.planning.queue.forecasting import NO_EXPERIENCE, Calibration, ForecastModel, TypeForecast, TypicalUsage
from gpudev.planning.queue.node_timelines import FOREVER, TimeSlot, Timetable
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.planner import DEFAULT_MARGIN, plan_last, plan_type
from gpudev.planning.queue.queue_input import TypeFacts, split_by_type, to_allocation, to_microseconds, to_request
from gpudev.ports.reservations import QueueAhead
from gpudev.settings import TimingSettings

_QUOTED_HOURS = (0.5, 1, 2, 4, 8, 12, 24, 48)
"""Durations in between get the quote of the next longer one."""


def request_sizes(facts: TypeFacts) -> list[int]:
    """Units per node that can be requested: powers of two, and whole nodes."""
    largest = max((node.units for node in facts.nodes), default=0)
    return sorted({size for size in (1, 2, 4, 8, 16) if size <= largest} | {largest} - {0})


def quote_starts(
    facts: TypeFacts,
    planned: Mapping[ReservationId, Start | Queued],
    requests: Sequence[Request],
    forecast: TypeForecast,
    overhead: timedelta,
) -> Iterator[StartQuote]:
    """`planned`: the plan's results; `overhead`: what the plan adds to the requested hours."""
    sizes = request_sizes(facts)
    if not sizes:
        return
    timetable = build_timetable(facts, planned, requests, sizes)
    whole = sizes[-1]
    for units, node_count in [*((size, 1) for size in sizes), *((whole, count) for count in range(2, MAX_NODES + 1))]:
        for duration in (*(timedelta(hours=hours) + overhead for hours in _QUOTED_HOURS), None):
            slot = timetable.find_slot(units, node_count, FOREVER if duration is None else to_microseconds(duration))
            if slot is None:
                continue
            latest = facts.now + timedelta(microseconds=slot.start)
            expected = None if duration is None else forecast.forecast_newcomer(units, node_count, duration, latest)
            yield StartQuote(units, node_count, duration, latest, expected.interval if expected else None)


def build_timetable(
    facts: TypeFacts, planned: Mapping[ReservationId, Start | Queued], requests: Sequence[Request], sizes: Sequence[int]
) -> Timetable:
    """The timetable with all planned starts."""
    timetable = Timetable(facts.timelines(), [*sizes, *(request.units_per_node for request in requests)])
    ranks = {node.name: rank for rank, node in enumerate(facts.nodes)}
    for request in requests:
        slot = _slot_of(facts, planned.get(request.reservation_id), ranks)
        if slot is not None:
            timetable.take(slot, request.units_per_node, max(1, to_microseconds(request.duration)))
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


# The estimate in the response to a submit, before the processor has examined the request. It is the queue's own plan up
# to the newcomer: requests behind it and of other types do not matter.


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
    """`queue` may contain the newcomer; it is counted once. `promises`: estimates of the queued requests."""
    order = queue_order(newcomer)
    ahead = [other for other in queue if other.gpu_type == newcomer.gpu_type and queue_order(other) < order]
    ((facts, requests),) = split_by_type(nodes, allocations, [*ahead, newcomer], now, margin)
    if not promises:
        return plan_last(facts, requests)
    *_, last = plan_type(facts, requests, promises)
    return last


LONG_QUEUE_AHEAD = 40
"""Up to this length the API plans the queue exactly as the processor does. In a longer queue that would be too slow:
the answer comes from the quotes of the published plan, and requests that came since are assumed to run first, one after
the other. The processor records the exact estimate soon."""


def estimate_position(
    newcomer: Request,
    nodes: Sequence[Node],
    same_type: Sequence[Reservation],
    plan: QueuePlan | None,
    *,
    now: datetime,
    timing: TimingSettings,
) -> Estimate:
    """`same_type`: all unreleased reservations of the newcomer's type. It may be among them, and may have its placement
    already: it never waits for itself."""
    order = queue_order(newcomer)
    nodes, waiting = with_zones(nodes, plan), queued_requests(same_type, plan, timing)
    ahead = [each for each in waiting if queue_order(each) < order]
    if len(ahead) > LONG_QUEUE_AHEAD:
        new = [each for each in ahead if plan is None or each.seq > plan.planned_seq]
        longest = sum((each.duration for each in new), timedelta(0))
        return estimate_in_long_queue(newcomer, QueueAhead(len(ahead), len(new), longest), plan, now)
    others = [each for each in same_type if each.reservation_id != newcomer.reservation_id]
    allocations = allocations_of(others, now, timing)
    margin, promises = timing.teardown_margin, plan.estimates if plan else None
    decision = estimate_newcomer(nodes, allocations, ahead, newcomer, now, margin=margin, promises=promises)
    if isinstance(decision, Start):
        return Estimate(len(ahead) + 1, now, TimeInterval(now, now, now), "it is about to start")
    planned = decision.estimate
    if planned.latest is None:
        return planned
    began = {each.reservation_id: each.launched_at for each in same_type if each.launched_at is not None}
    ((facts, requests),) = split_by_type(nodes, allocations, [*ahead, newcomer], now, margin)
    forecasts = TypeForecast(facts, requests, began, _published_model(plan)).forecast_waiting(
        {newcomer.reservation_id: planned.latest}, {}
    )
    expected = forecasts.get(newcomer.reservation_id)
    return replace(planned, interval=expected.interval if expected else None)


def estimate_in_long_queue(newcomer: Request, ahead: QueueAhead, plan: QueuePlan | None, now: datetime) -> Estimate:
    reason = f"{ahead.count} reservations are ahead of it"
    offer = _find_offer(newcomer, plan)
    bound = offer if not ahead.unplanned else _find_offer(newcomer, plan, forever=True)
    latest = None if bound is None else max(now, bound.latest) + ahead.unplanned_duration
    return Estimate(ahead.count + 1, latest, _expected_interval(offer, latest, now), reason)


def with_zones(nodes: Sequence[Node], plan: QueuePlan | None) -> Sequence[Node]:
    """Adds zones from the published plan, because the published nodes have none."""
    if plan is None or not plan.zones:
        return nodes
    return [replace(node, zone=plan.zones.get(node.name)) for node in nodes]


def queued_requests(
    reservations: Iterable[Reservation], plan: QueuePlan | None, timing: TimingSettings
) -> list[Request]:
    """Requests of queued reservations. Those not examined yet have no zone constraint."""
    constraints = plan.zone_constraints if plan is not None else {}
    return [
        to_request(each, timing, zone_constraint=constraints.get(each.reservation_id))
        for each in reservations
        if each.status.is_waiting
    ]


def allocations_of(reservations: Iterable[Reservation], now: datetime, timing: TimingSettings) -> list[Allocation]:
    return [held for each in reservations if (held := to_allocation(each, now, timing)) is not None]


def _published_model(plan: QueuePlan | None) -> ForecastModel:
    """The forecast model from the published plan, or the prior."""
    if plan is None or plan.usage_ratios is None or plan.correction_factors is None:
        return ForecastModel.from_experience(NO_EXPERIENCE)
    calibration = Calibration(plan.correction_factors)
    return ForecastModel(TypicalUsage(plan.usage_ratios), calibration, calibration)


def _find_offer(newcomer: Request, plan: QueuePlan | None, *, forever: bool = False) -> StartQuote | None:
    """The published quote of this shape: for the same duration, or the next longer one."""
    alike = [
        offer
        for offer in (plan.quotes if plan else ())
        if (offer.units, offer.node_count) == (newcomer.units_per_node, newcomer.node_count)
        and (offer.duration is None or (not forever and offer.duration >= newcomer.duration))
    ]
    return min(alike, key=lambda offer: offer.duration or timedelta.max, default=None)


def _expected_interval(offer: StartQuote | None, latest: datetime | None, now: datetime) -> TimeInterval | None:
    """The quoted interval, clamped between now and the guaranteed start."""
    if offer is None or offer.interval is None or latest is None:
        return None
    expected, earliest, likely = (
        min(latest, max(now, moment))
        for moment in (offer.interval.expected, offer.interval.earliest, offer.interval.latest_likely)
    )
    return TimeInterval(expected, earliest, likely)
