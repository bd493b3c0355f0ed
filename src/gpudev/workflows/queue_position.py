"""Where a request would stand in the line for its type, told before a processor has looked at it.

Short lines are planned exactly as the processor plans them, promises kept. Planning hundreds for one answer would make
everybody wait: in a long line the answer comes from the published plan, which says what a newcomer would get, and
whoever came since is counted as going first, one after the other. The processor tells the exact start a moment later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import Holding, Node
from gpudev.domain.queue import Estimate, Offer, QueuePlan, Span
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.estimate import estimate
from gpudev.planning.facts import by_type, queue_order
from gpudev.planning.forecast_habits import TypicalStay
from gpudev.planning.forecast_record import Calibration
from gpudev.planning.queue.forecasting import NOTHING_KNOWN, Known, TypeForecast
from gpudev.planning.queue.plan import Request, Start
from gpudev.planning.queue.queue_cycle import promises_of
from gpudev.planning.spans import asked_by, held_by
from gpudev.ports.reservations import Ahead
from gpudev.settings import Timing

LONG_LINE = 40


def stand(
    newcomer: Request,
    nodes: Sequence[Node],
    same_type: Sequence[Reservation],
    plan: QueuePlan | None,
    *,
    now: datetime,
    timing: Timing,
) -> Estimate:
    """`same_type`: everything unreleased of the newcomer's type; it may be among them."""
    place = queue_order(newcomer)
    nodes, waiting = nodes_in_zones(nodes, plan), requests_of(same_type, plan, timing)
    ahead = [one for one in waiting if queue_order(one) < place]
    if len(ahead) > LONG_LINE:
        new = [one for one in ahead if plan is None or one.seq > plan.planned_seq]
        longest = sum((one.duration for one in new), timedelta(0))
        return stand_in_long_line(newcomer, Ahead(len(ahead), len(new), longest), plan, now)
    holdings = holdings_of(same_type, now, timing)
    margin, promises = timing.teardown_margin, promises_of(plan) if plan else None
    decision = estimate(nodes, holdings, ahead, newcomer, now, margin=margin, promises=promises)
    if isinstance(decision, Start):
        return Estimate(len(ahead) + 1, now, Span(now, now, now), "it is about to start")
    if decision.starts_at is None:
        return Estimate(decision.position, None, None, decision.reason)
    began = {one.reservation_id: one.launched_at for one in same_type if one.launched_at is not None}
    ((facts, requests),) = by_type(nodes, holdings, [*ahead, newcomer], now, margin)
    forecasts = TypeForecast(facts, requests, began, _known(plan)).of_waiting(
        {newcomer.reservation_id: decision.starts_at}, {}
    )
    told = forecasts.get(newcomer.reservation_id)
    return Estimate(decision.position, decision.starts_at, told.span if told else None, decision.reason, decision.nodes)


def stand_in_long_line(newcomer: Request, ahead: Ahead, plan: QueuePlan | None, now: datetime) -> Estimate:
    reason = f"{ahead.count} reservations are ahead of it"
    offer = _offer(newcomer, plan)
    bound = offer if not ahead.new else _offer(newcomer, plan, forever=True)
    latest = None if bound is None else max(now, bound.latest) + ahead.new_for_at_most
    return Estimate(ahead.count + 1, latest, _span(offer, latest, now), reason)


def nodes_in_zones(nodes: Sequence[Node], plan: QueuePlan | None) -> Sequence[Node]:
    """As the processor sees them: the published nodes do not say where they are, the published plan does."""
    if plan is None or not plan.zones:
        return nodes
    return [replace(node, zone=plan.zones.get(node.name)) for node in nodes]


def requests_of(reservations: Iterable[Reservation], plan: QueuePlan | None, timing: Timing) -> list[Request]:
    """Of those who wait. Where the disk of one is whom no processor has looked at yet, nobody knows."""
    anchors = plan.anchors if plan is not None else {}
    return [
        asked_by(one, timing, anchor=anchors.get(one.reservation_id)) for one in reservations if one.status.is_waiting
    ]


def holdings_of(reservations: Iterable[Reservation], now: datetime, timing: Timing) -> list[Holding]:
    return [held for one in reservations if (held := held_by(one, now, timing)) is not None]


def _known(plan: QueuePlan | None) -> Known:
    """What the processor has learnt, as far as it is published."""
    if plan is None or plan.habits is None or plan.factors is None:
        return Known.of(NOTHING_KNOWN)
    calibration = Calibration(plan.factors)
    return Known(TypicalStay(plan.habits), calibration, calibration)


def _offer(newcomer: Request, plan: QueuePlan | None, *, forever: bool = False) -> Offer | None:
    """What the published plan has for this shape: for the same duration, or the next longer one."""
    alike = [
        offer
        for offer in (plan.offers if plan else ())
        if (offer.units, offer.node_count) == (newcomer.units_per_node, newcomer.node_count)
        and (offer.duration is None or (not forever and offer.duration >= newcomer.duration))
    ]
    return min(alike, key=lambda offer: offer.duration or timedelta.max, default=None)


def _span(offer: Offer | None, latest: datetime | None, now: datetime) -> Span | None:
    """What the plan expected, made to fit between now and the promise."""
    if offer is None or offer.span is None or latest is None:
        return None
    expected, earliest, likely = (
        min(latest, max(now, moment)) for moment in (offer.span.expected, offer.span.earliest, offer.span.latest_likely)
    )
    return Span(expected, earliest, likely)
