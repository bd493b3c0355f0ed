"""Where a request would stand in the line for its type, told before a processor has looked at it.

Short lines are planned exactly as the processor plans them, promises kept. Planning hundreds for one answer would make
everybody wait: in a long line the answer comes from the published plan, which says what a newcomer would get, and
whoever came since is counted as going first, one after the other. The processor tells the exact start a moment later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.queue import Estimate, QueuePlan, StartQuote, TimeInterval
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.fair_share import queue_order
from gpudev.planning.queue.forecasting import NO_EXPERIENCE, Calibration, ForecastModel, TypeForecast, TypicalUsage
from gpudev.planning.queue.plan import Request, Start
from gpudev.planning.queue.queue_input import split_by_type, to_allocation, to_request
from gpudev.planning.queue.start_quotes import estimate_newcomer
from gpudev.ports.reservations import QueueAhead
from gpudev.settings import TimingSettings

LONG_QUEUE_AHEAD = 40


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
