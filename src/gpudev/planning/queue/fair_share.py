"""Fair share: the order of requests by past usage instead of arrival.

Users who used less for their weight go first. Several requests of one user count as if the earlier ones were already
used, so that nobody gets ahead with all of theirs. A request that has waited long enough goes first anyway.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.access.users import FairShareUsage
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.plan import Request

_NOTHING_USED = FairShareUsage(0.0)


def compute_fair_ranks(
    reservations: Sequence[Reservation],
    gpu_type: str,
    usage: Mapping[UserId, FairShareUsage],
    now: datetime,
    patience: timedelta,
) -> dict[ReservationId, int]:
    """The turn of everybody who waits for this type, the first is 0. `reservations`: everything unreleased, of any
    type; `usage`: of what has ended. What runs counts as if it were used up already."""
    had: defaultdict[UserId, float] = defaultdict(float)
    for one in reservations:
        if one.status.holds_capacity:
            had[one.user_id] += _gpu_hours(one)
    order: list[tuple[bool, float, int, ReservationId]] = []
    for one in sorted(reservations, key=lambda one: one.seq):
        if one.gpu_type != gpu_type or not one.status.is_waiting:
            continue
        own = usage.get(one.user_id, _NOTHING_USED)
        share = (own.gpu_hours + had[one.user_id]) / own.weight
        had[one.user_id] += _gpu_hours(one)
        is_patient = now - one.created_at < patience
        order.append((is_patient, share if is_patient else 0.0, one.seq, one.reservation_id))
    return {reservation_id: turn for turn, (_, _, _, reservation_id) in enumerate(sorted(order))}


def _gpu_hours(one: Reservation) -> float:
    """All it was given; a CPU slot counts as one."""
    return max(1, one.gpu_count) * (one.duration / timedelta(hours=1))


def queue_order(request: Request) -> tuple[int, int, int, ReservationId]:
    return (-request.priority, request.fair_rank, request.seq, request.reservation_id)
