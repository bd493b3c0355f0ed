"""Where a request would stand in the line for its type, told before a processor has looked at it.

Short lines are planned exactly as the processor plans them. In a long line a newcomer is told the latest start that
was promised to anybody ahead of it: planning hundreds for one answer would make everybody wait, and the processor
writes the exact start a moment later.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpudev.domain.capacity import Holding, Node
from gpudev.domain.reservation import Reservation
from gpudev.planning.estimate import estimate
from gpudev.planning.facts import queue_order
from gpudev.planning.plan import Request, Start, Wait, request_of

LONG_LINE = 40


def stand(
    newcomer: Request, nodes: Sequence[Node], same_type: Sequence[Reservation], now: datetime, margin: timedelta
) -> Wait:
    """`same_type`: everything unreleased of the newcomer's type; it may be among them."""
    place = queue_order(newcomer)
    waiting = [one for one in same_type if one.status.is_waiting]
    if len(waiting) > LONG_LINE:
        ahead = [one for one in waiting if (-one.priority, one.seq, one.reservation_id) < place]
        if len(ahead) > LONG_LINE:
            starts = [one.estimated_start_at for one in ahead if one.estimated_start_at is not None]
            return stand_in_long_line(newcomer, len(ahead), max(starts, default=None))
    queue = [request_of(one) for one in waiting]
    decision = estimate(nodes, holdings_of(same_type), queue, newcomer, now, margin=margin)
    if isinstance(decision, Start):
        ahead_of_it = sum(1 for one in queue if queue_order(one) < place)
        return Wait(newcomer.reservation_id, ahead_of_it + 1, now, (), "it is about to start")
    return decision


def stand_in_long_line(newcomer: Request, ahead: int, latest_start: datetime | None) -> Wait:
    return Wait(newcomer.reservation_id, ahead + 1, latest_start, (), f"{ahead} reservations are ahead of it")


def holdings_of(reservations: Sequence[Reservation]) -> list[Holding]:
    return [held for one in reservations if (held := one.holding()) is not None]
