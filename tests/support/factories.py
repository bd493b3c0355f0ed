"""Rows for tests, with ordinary values for what a test does not care about."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpudev.domain.ids import UserId, new_reservation_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def make_reservation(status: Status = Status.QUEUED, **changes: Any) -> Reservation:
    made = Reservation(
        reservation_id=new_reservation_id(),
        seq=1,
        user_id=UserId(1),
        username="ada",
        status=status,
        version=1,
        gpu_type="h100",
        gpu_count=2,
        node_count=1,
        duration=timedelta(hours=2),
        created_at=NOW,
    )
    return replace(made, **changes)
