"""How long things take at most, as the plan counts it: with the time to prepare before and to clear away after.

Here the margins enter, and nowhere else: what the plan is told are the last moments at which something is free again.
So its starts are promises that a slow start or a slow end of somebody ahead does not break.
"""

from datetime import datetime

from gpudev.domain.cluster import Allocation, ZoneConstraint
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.plan import Request
from gpudev.settings import TimingSettings


def to_request(
    reservation: Reservation, timing: TimingSettings, fair_rank: int = 0, zone_constraint: ZoneConstraint | None = None
) -> Request:
    """A waiting reservation as the plan sees it."""
    return Request(
        reservation_id=reservation.reservation_id,
        seq=reservation.seq,
        gpu_type=reservation.gpu_type,
        units_per_node=max(1, reservation.gpu_count // reservation.node_count),
        node_count=reservation.node_count,
        duration=reservation.duration + timing.reservation_overhead,
        priority=reservation.priority,
        slots=reservation.gpu_count == 0,
        fair_rank=fair_rank,
        zone_constraint=zone_constraint,
    )


def to_allocation(reservation: Reservation, now: datetime, timing: TimingSettings) -> Allocation | None:
    """What it keeps others from using, and the last moment at which that is free again."""
    if reservation.is_released or not reservation.shares:
        return None
    return Allocation(
        reservation.reservation_id,
        reservation.gpu_type,
        reservation.shares,
        _latest_free_time(reservation, now, timing),
    )


def _latest_free_time(reservation: Reservation, now: datetime, timing: TimingSettings) -> datetime | None:
    if reservation.status.is_terminal:
        ended = reservation.reservation_ended
        return None if ended is None else ended + timing.teardown_margin
    if reservation.status is Status.ACTIVE and reservation.expires_at is not None:
        return reservation.expires_at + timing.teardown_margin
    if reservation.is_being_requeued:
        return None
    begun = reservation.preparing_at or now
    # Its time begins when it is ready. One that takes longer than planned may be ready at any moment.
    ready_by = max(begun + timing.preparing_margin, now)
    return ready_by + reservation.duration + timing.teardown_margin
