"""Delay reasons: whether a queued request's start became materially later, and why."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpudev.domain.cluster import Allocation, Node, describe_closed_node
from gpudev.domain.ids import short_id
from gpudev.domain.queue import DelayCause, Estimate
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_input import QueueInput

_LEAST_DELAY = timedelta(seconds=60)
_MATERIAL_SHARE = 0.1
"""Of the whole wait."""


def is_delayed(promise: Estimate, estimate: Estimate, waiting_since: datetime, now: datetime) -> bool:
    """Whether its guaranteed start became materially later, so that the delay needs a reason."""
    if promise.latest is None or estimate.latest is None:
        return promise.latest is not None
    threshold = max(_LEAST_DELAY, (estimate.latest - waiting_since) * _MATERIAL_SHARE)
    return estimate.latest - promise.latest >= threshold


def get_delay_cause(queue_input: QueueInput, row: Reservation, promise: Estimate) -> tuple[DelayCause, str]:
    """The cause of a delayed start, and a sentence for people."""
    request = next(request for request in queue_input.requests if request.reservation_id == row.reservation_id)
    cause, explanation = explain_delay(
        promise,
        request,
        nodes=queue_input.nodes,
        allocations=queue_input.allocations,
        preparing=queue_input.preparing(),
        queue=queue_input.requests,
        now=queue_input.now,
        preparing_margin=queue_input.timing.preparing_margin,
    )
    if cause is DelayCause.UNEXPLAINED and queue_input.is_fair_share:
        return DelayCause.FAIR_SHARE, "users with less usage go first (fair share)"
    return cause, explanation


def explain_delay(
    promise: Estimate,
    request: Request,
    *,
    nodes: Iterable[Node],
    allocations: Sequence[Allocation],
    preparing: Iterable[Reservation],
    queue: Iterable[Request],
    now: datetime,
    preparing_margin: timedelta,
) -> tuple[DelayCause, str]:
    """The cause, and a sentence for people."""
    known = {node.name: node for node in nodes}
    for name in promise.nodes:
        node = known.get(name)
        if node is None or not node.ready:
            return DelayCause.NODE_LOST, f"node {name} was lost"
        if not node.schedulable:
            return DelayCause.OPERATOR, f"node {name} was {describe_closed_node(node)}"
    if any(other.priority > request.priority for other in queue):
        return DelayCause.OPERATOR, "an operator gave other requests a higher priority"
    node_names = set(promise.nodes)
    for allocation in allocations:
        overdue = allocation.until is None or allocation.until <= now
        if overdue and node_names.intersection(share.node for share in allocation.shares):
            late = short_id(allocation.reservation_id)
            return DelayCause.SLOW_RELEASE, f"reservation {late} has ended and is still being torn down"
    for reservation in preparing:
        slow = reservation.preparing_at is not None and now > reservation.preparing_at + preparing_margin
        if slow and node_names.intersection(share.node for share in reservation.shares):
            late = short_id(reservation.reservation_id)
            return DelayCause.SLOW_START, f"reservation {late} takes long to start"
    if any(known[name].foreign_units for name in node_names):
        return DelayCause.FOREIGN_WORK, "GPUs there are in unmanaged use"
    return DelayCause.UNEXPLAINED, "the plan has changed"
