"""Fair share: the order of requests by past usage instead of arrival.

Users with less usage for their weight go first. A user's earlier requests count as used, so one user's requests do not
all go first. A request that has waited longer than `patience` goes first anyway.
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
    """Ranks of the type's queued requests, from 0. `reservations`: all unreleased, of any type; `usage`: of ended
    reservations. A running reservation counts with its full duration."""
    reserved_hours: defaultdict[UserId, float] = defaultdict(float)
    for reservation in reservations:
        if reservation.status.holds_capacity:
            reserved_hours[reservation.user_id] += _gpu_hours(reservation)
    order: list[tuple[bool, float, int, ReservationId]] = []
    for reservation in sorted(reservations, key=lambda reservation: reservation.seq):
        if reservation.gpu_type != gpu_type or not reservation.status.is_waiting:
            continue
        user_usage = usage.get(reservation.user_id, _NOTHING_USED)
        share = (user_usage.gpu_hours + reserved_hours[reservation.user_id]) / user_usage.weight
        reserved_hours[reservation.user_id] += _gpu_hours(reservation)
        is_patient = now - reservation.created_at < patience
        order.append((is_patient, share if is_patient else 0.0, reservation.seq, reservation.reservation_id))
    return {reservation_id: rank for rank, (_, _, _, reservation_id) in enumerate(sorted(order))}


def _gpu_hours(reservation: Reservation) -> float:
    """Its full duration; a CPU slot counts as one GPU."""
    return max(1, reservation.gpu_count) * (reservation.duration / timedelta(hours=1))


def queue_order(request: Request) -> tuple[int, int, int, ReservationId]:
    return (-request.priority, request.fair_rank, request.seq, request.reservation_id)
