"""The answer to a submit: where a newcomer stands before the processor has looked at it. The very plan of the
queue, made only as far as the newcomer: what is behind it or of another type cannot matter."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import queue_order, split_by_type
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.planner import DEFAULT_MARGIN, plan_last, plan_type


def estimate_newcomer(
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    queue: Sequence[Request],
    newcomer: Request,
    now: datetime,
    *,
    margin: timedelta = DEFAULT_MARGIN,
    promises: Mapping[ReservationId, Queued] | None = None,
) -> Start | Queued:
    """`queue` may hold the newcomer already; it is counted once. `promises`: what those who wait were told."""
    place = queue_order(newcomer)
    ahead = [other for other in queue if other.gpu_type == newcomer.gpu_type and queue_order(other) < place]
    ((facts, requests),) = split_by_type(nodes, allocations, [*ahead, newcomer], now, margin)
    if not promises:
        return plan_last(facts, requests)
    *_, last = plan_type(facts, requests, promises)
    return last
