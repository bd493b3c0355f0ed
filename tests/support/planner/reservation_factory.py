"""A reservation in any state, for the tests of the decisions about running ones."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpudev.domain.cluster import NodeShare
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, SshEndpoint
from support.factories import make_reservation
from support.planner.situations import NOW, rid

HERE = SshEndpoint("127.0.0.1", 2201, "dev", "ssh-ed25519 AAAA")
ELSEWHERE = SshEndpoint("127.0.0.1", 2202, "dev", "ssh-ed25519 AAAA")

_PREPARING = make_reservation(
    Status.PREPARING,
    reservation_id=rid(1),
    version=3,
    duration=timedelta(hours=4),
    created_at=NOW - timedelta(minutes=10),
    preparing_at=NOW - timedelta(minutes=1),
    step="starting the dev server",
    shares=(NodeShare(0, "a", 2, (0, 1)),),
)


def preparing(**changes: Any) -> Reservation:
    return replace(_PREPARING, **changes)


def active(minutes_left: float = 120, **changes: Any) -> Reservation:
    facts: dict[str, Any] = {
        "status": Status.ACTIVE,
        "launched_at": NOW - timedelta(hours=1),
        "expires_at": NOW + timedelta(minutes=minutes_left),
        "connection": HERE,
        "step": None,
    }
    return replace(_PREPARING, **(facts | changes))
