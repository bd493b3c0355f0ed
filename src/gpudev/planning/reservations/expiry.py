"""Expiry: has a reservation's time run out, and is a warning due?"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.settings import TimingSettings


@dataclass(frozen=True, slots=True)
class Expire:
    """Its time is over."""


@dataclass(frozen=True, slots=True)
class Warn:
    minutes: int
    """The threshold that was passed; `warned_minutes` becomes this."""
    left: timedelta
    """The time left, as shown to users: less than the threshold if no processor ran when it passed."""


@dataclass(frozen=True, slots=True)
class NotDue:
    next_at: datetime | None
    """When to decide again at the latest. None: the passage of time changes nothing."""


def decide_expiry(reservation: Reservation, now: datetime, timing: TimingSettings) -> Expire | Warn | NotDue:
    """One warning per threshold and expiry time. If several are due (short reservations, a processor outage), only the
    smallest is sent."""
    if reservation.status is not Status.ACTIVE or reservation.expires_at is None:
        return NotDue(None)
    left = reservation.expires_at - now
    if left <= timedelta(0):
        return Expire()
    open_thresholds = [m for m in timing.warning_minutes if _is_open(m, reservation.warned_minutes)]
    due = [m for m in open_thresholds if left <= timedelta(minutes=m)]
    if due:
        return Warn(min(due), left)
    return NotDue(reservation.expires_at - timedelta(minutes=max(open_thresholds, default=0)))


def _is_open(minutes: int, warned: int | None) -> bool:
    """A smaller threshold already warned of closes the larger ones."""
    return warned is None or minutes < warned
