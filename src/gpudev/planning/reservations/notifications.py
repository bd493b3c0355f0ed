"""Notifications: what is sent for a history event, and when it is retried. Pure. A notification that is no longer true
is not sent.
"""

from datetime import datetime, timedelta

from gpudev.domain.backoff import backoff
from gpudev.domain.ids import short_id
from gpudev.domain.notifications import HISTORY_KINDS, Notification, NotificationKind
from gpudev.domain.reservations.changes import TIME_IS_OVER
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import (
    Reservation,
    ReservationEvent,
    format_minutes,
    format_utc_time,
    minutes_until,
)

GIVE_UP_AFTER = timedelta(days=1)
_FIRST_PAUSE = timedelta(seconds=30)
_LONGEST_PAUSE = timedelta(hours=1)
_LONGEST_REASON = 300
_NOTIFICATION_KINDS = {kind: notification_kind for notification_kind, kinds in HISTORY_KINDS.items() for kind in kinds}


def compose_notification(event: ReservationEvent, reservation: Reservation, now: datetime) -> Notification | None:
    """None: no longer true, or this kind of event is not sent."""
    match _NOTIFICATION_KINDS.get(event.kind):
        case NotificationKind.READY:
            return _ready(reservation)
        case NotificationKind.WARNING:
            return _warning(reservation, now)
        case NotificationKind.FAILED:
            reason = _first_line(reservation.failure_reason or event.message)
            return Notification(
                NotificationKind.FAILED, f"{_name(reservation)} failed", f"{_about(reservation)}. {reason}"
            )
        case NotificationKind.ENDED:
            # A client that ran a command cancels the reservation when the command has ended.
            is_over = event.kind == "expired" or reservation.exit_code is not None
            how = "is over" if is_over else "was cancelled"
            why = "Its time has passed." if event.message == TIME_IS_OVER else _first_line(event.message)
            return Notification(NotificationKind.ENDED, f"{_name(reservation)} {how}", f"{_about(reservation)}. {why}")
        case None:
            return None


def next_attempt_at(attempts: int, happened: datetime, now: datetime) -> datetime | None:
    """`attempts`: failures so far. None: give up."""
    pause = backoff(attempts, _FIRST_PAUSE, _LONGEST_PAUSE)
    return now + pause if now + pause <= happened + GIVE_UP_AFTER else None


def _ready(reservation: Reservation) -> Notification | None:
    if reservation.status is not Status.ACTIVE or reservation.expires_at is None:
        return None
    until = f"until {reservation.expires_at:%Y-%m-%d %H:%M} UTC"
    text = f"{_about(reservation)}, {until}. To get in: gpu-dev connect {short_id(reservation.reservation_id)}"
    return Notification(NotificationKind.READY, f"{_name(reservation)} is ready", text)


def _warning(reservation: Reservation, now: datetime) -> Notification | None:
    """None: it was extended since, or has ended."""
    end = reservation.expires_at
    if reservation.status is not Status.ACTIVE or end is None or reservation.warned_minutes is None or end <= now:
        return None
    text = (
        f"{_about(reservation)}, ends at {format_utc_time(end, now)}. "
        f"To stay: gpu-dev extend {short_id(reservation.reservation_id)} --hours 1"
    )
    return Notification(
        NotificationKind.WARNING, f"{_name(reservation)} ends in {format_minutes(minutes_until(end, now))}", text
    )


def _name(reservation: Reservation) -> str:
    own = f" ({reservation.name})" if reservation.name else ""
    return f"gpu-dev reservation {short_id(reservation.reservation_id)}{own}"


def _about(reservation: Reservation) -> str:
    count, kind = reservation.gpu_count, reservation.gpu_type
    return f"{f'{count} x {kind}' if count else kind} of {reservation.username}"


def _first_line(text: str) -> str:
    """Without the log lines that may follow it."""
    line = text.strip().partition("\n")[0]
    return "".join(letter for letter in line if letter.isprintable())[:_LONGEST_REASON]
