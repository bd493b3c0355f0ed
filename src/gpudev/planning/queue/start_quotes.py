"""Estimates for newcomers: start quotes for every shape, and where one new request stands.

Quotes are computed with the plan, so that a newcomer gets an answer without another planning run.
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


# The answer to a submit: where a newcomer stands before the processor has examined it. The very plan of the
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


LONG_QUEUE_AHEAD = 40
"""A shorter queue is planned exactly as the processor plans it, guaranteed starts kept. Planning hundreds for one
answer would keep everybody waiting: in a longer queue the answer comes from the quotes of the published plan, and
requests that came since count as going first, one after the other. The processor records the exact estimate soon."""


def estimate_position(
    newcomer: Request,
    nodes: Sequence[Node],
    same_type: Sequence[Reservation],
    plan: QueuePlan | None,
    *,
    now: datetime,
    timing: TimingSettings,
) -> Estimate:
    """`same_type`: everything unreleased of the newcomer's type; it may be among them."""
    place = queue_order(newcomer)
    nodes, waiting = with_zones(nodes, plan), queued_requests(same_type, plan, timing)
    ahead = [one for one in waiting if queue_order(one) < place]
    if len(ahead) > LONG_QUEUE_AHEAD:
        new = [one for one in ahead if plan is None or one.seq > plan.planned_seq]
        longest = sum((one.duration for one in new), timedelta(0))
        return estimate_in_long_queue(newcomer, QueueAhead(len(ahead), len(new), longest), plan, now)
    holdings = allocations_of(same_type, now, timing)
    margin, promises = timing.teardown_margin, plan.estimates if plan else None
    decision = estimate_newcomer(nodes, holdings, ahead, newcomer, now, margin=margin, promises=promises)
    if isinstance(decision, Start):
        return Estimate(len(ahead) + 1, now, TimeInterval(now, now, now), "it is about to start")
    planned = decision.estimate
    if planned.latest is None:
        return planned
    began = {one.reservation_id: one.launched_at for one in same_type if one.launched_at is not None}
    ((facts, requests),) = split_by_type(nodes, holdings, [*ahead, newcomer], now, margin)
    forecasts = TypeForecast(facts, requests, began, _published_model(plan)).forecast_waiting(
        {newcomer.reservation_id: planned.latest}, {}
    )
    told = forecasts.get(newcomer.reservation_id)
    return replace(planned, interval=told.interval if told else None)


def estimate_in_long_queue(newcomer: Request, ahead: QueueAhead, plan: QueuePlan | None, now: datetime) -> Estimate:
    reason = f"{ahead.count} reservations are ahead of it"
    offer = _find_offer(newcomer, plan)
    bound = offer if not ahead.unplanned else _find_offer(newcomer, plan, forever=True)
    latest = None if bound is None else max(now, bound.latest) + ahead.unplanned_duration
    return Estimate(ahead.count + 1, latest, _expected_interval(offer, latest, now), reason)


def with_zones(nodes: Sequence[Node], plan: QueuePlan | None) -> Sequence[Node]:
    """As the processor sees them: the published nodes do not say where they are, the published plan does."""
    if plan is None or not plan.zones:
        return nodes
    return [replace(node, zone=plan.zones.get(node.name)) for node in nodes]


def queued_requests(
    reservations: Iterable[Reservation], plan: QueuePlan | None, timing: TimingSettings
) -> list[Request]:
    """Of those who wait. Where the disk of one is whom no processor has looked at yet, nobody knows."""
    anchors = plan.zone_constraints if plan is not None else {}
    return [
        to_request(one, timing, zone_constraint=anchors.get(one.reservation_id))
        for one in reservations
        if one.status.is_waiting
    ]


def allocations_of(reservations: Iterable[Reservation], now: datetime, timing: TimingSettings) -> list[Allocation]:
    return [held for one in reservations if (held := to_allocation(one, now, timing)) is not None]


def _published_model(plan: QueuePlan | None) -> ForecastModel:
    """What the processor has learnt, as far as it is published."""
    if plan is None or plan.usage_ratios is None or plan.correction_factors is None:
        return ForecastModel.from_experience(NO_EXPERIENCE)
    calibration = Calibration(plan.correction_factors)
    return ForecastModel(TypicalUsage(plan.usage_ratios), calibration, calibration)


def _find_offer(newcomer: Request, plan: QueuePlan | None, *, forever: bool = False) -> StartQuote | None:
    """What the published plan has for this shape: for the same duration, or the next longer one."""
    alike = [
        offer
        for offer in (plan.quotes if plan else ())
        if (offer.units, offer.node_count) == (newcomer.units_per_node, newcomer.node_count)
        and (offer.duration is None or (not forever and offer.duration >= newcomer.duration))
    ]
    return min(alike, key=lambda offer: offer.duration or timedelta.max, default=None)


def _expected_interval(offer: StartQuote | None, latest: datetime | None, now: datetime) -> TimeInterval | None:
    """What the plan expected, made to fit between now and the promise."""
    if offer is None or offer.interval is None or latest is None:
        return None
    expected, earliest, likely = (
        min(latest, max(now, moment))
        for moment in (offer.interval.expected, offer.interval.earliest, offer.interval.latest_likely)
    )
    return TimeInterval(expected, earliest, likely)
