"""What people who wait are told: what of a new plan is worth writing down, and why somebody's start became later.

A full queue must not mean a write for everybody at every event. A change counts if it is large for its owner: the
place of the tenth moves by one, that of the thousandth by a hundred. So one event touches few, however many wait.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.cordon import describe_closed_node
from gpudev.domain.ids import short_id
from gpudev.domain.queue import DelayCause, Estimate, EstimateRecord
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.forecasting import NEWCOMER_FOR
from gpudev.planning.queue.plan import Queued, Request

_SIGNIFICANT_SHARE = 0.1
_LEAST_SHIFT = timedelta(seconds=30)
_LEAST_DELAY = timedelta(seconds=60)
RECORD_EVERY = timedelta(hours=1)
"""While it waits, what is told is kept for comparison this often."""


def is_worth_writing(row: Reservation, estimate: Estimate, now: datetime) -> bool:
    """Whether what its row says is no longer near enough to the plan."""
    if (
        row.queue_position is None
        or abs(estimate.position - row.queue_position) > row.queue_position * _SIGNIFICANT_SHARE
    ):
        return True
    at_the_front = estimate.position * _SIGNIFICANT_SHARE <= 1
    if at_the_front and estimate.reason != row.wait_reason:
        return True
    share = 0.0 if at_the_front else _SIGNIFICANT_SHARE
    told = row.expected_start.expected if row.expected_start else None
    expected = estimate.interval.expected if estimate.interval else None
    # What is expected creeps all the time: even at the front only a large step of it is news.
    return _has_moved(row.latest_start_at, estimate.latest, now, share) or _has_moved(
        told, expected, now, _SIGNIFICANT_SHARE
    )


def is_record_due(last: EstimateRecord | None, now: datetime) -> bool:
    """Whether what is told now is kept, to be compared with what happens."""
    return last is None or now - last.made_at >= RECORD_EVERY


def is_newcomer(row: Reservation, now: datetime) -> bool:
    return now - row.created_at < NEWCOMER_FOR


def is_delayed(promise: Queued, wait: Queued, waiting_since: datetime, now: datetime) -> bool:
    """Whether its start became so much later than it was told that this needs an explanation."""
    if promise.starts_at is None or wait.starts_at is None:
        return promise.starts_at is not None
    worth = max(_LEAST_DELAY, (wait.starts_at - waiting_since) * _SIGNIFICANT_SHARE)
    return wait.starts_at - promise.starts_at >= worth


def explain_delay(
    promise: Queued,
    request: Request,
    *,
    nodes: Iterable[Node],
    allocations: Sequence[Allocation],
    preparing: Iterable[Reservation],
    queue: Iterable[Request],
    now: datetime,
    preparing_margin: timedelta,
) -> tuple[DelayCause, str]:
    """The cause, and the same in words."""
    known = {node.name: node for node in nodes}
    for name in promise.nodes:
        node = known.get(name)
        if node is None or not node.ready:
            return DelayCause.NODE_LOST, f"node {name} was lost"
        if not node.schedulable:
            return DelayCause.OPERATOR, f"node {name} was {describe_closed_node(node)}"
    if any(other.priority > request.priority for other in queue):
        return DelayCause.OPERATOR, "an operator let others go first"
    there = set(promise.nodes)
    for holding in allocations:
        overdue = holding.until is None or holding.until <= now
        if overdue and there.intersection(share.node for share in holding.shares):
            late = short_id(holding.reservation_id)
            return DelayCause.SLOW_RELEASE, f"reservation {late}, which is over, is still being cleared away"
    for reservation in preparing:
        slow = reservation.preparing_at is not None and now > reservation.preparing_at + preparing_margin
        if slow and there.intersection(share.node for share in reservation.shares):
            late = short_id(reservation.reservation_id)
            return DelayCause.SLOW_START, f"reservation {late} is taking long to start"
    if any(known[name].foreign_units for name in there):
        return DelayCause.FOREIGN_WORK, "work that belongs to no reservation holds GPUs there"
    return DelayCause.UNEXPLAINED, "the plan has changed"


def _has_moved(before: datetime | None, after: datetime | None, now: datetime, share: float) -> bool:
    if before is None or after is None:
        return before != after
    return abs(after - before) >= max(_LEAST_SHIFT, (after - now) * share)
