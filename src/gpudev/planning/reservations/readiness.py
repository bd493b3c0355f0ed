"""Readiness: what a dev server's state, as last seen, means for its reservation.

`seen` None means that a complete look at the cluster does not have it: a definite "not there". Whoever could not
look does not ask. Expiry is decided elsewhere; a reservation whose time is over is left to it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from gpudev.domain.reservations.command_exit import RunEnd
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Connection, Reservation
from gpudev.planning.reservations.launch_failures import find_trouble, in_trouble_until
from gpudev.ports.cluster import Phase, ServerSeen
from gpudev.settings import Timing

_NO_REASON = "the dev server ended without saying why"


@dataclass(frozen=True, slots=True)
class Activate:
    """Ready: its time begins."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Still active, and ready again or reached another way than recorded: it was started again."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class Fail:
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """What it was reserved for is done."""

    run_end: RunEnd


@dataclass(frozen=True, slots=True)
class Progress:
    """Being prepared; the step to show has changed."""

    step: str


@dataclass(frozen=True, slots=True)
class Launch:
    restart: bool
    """True: it was active and was lost; the history says that it is started again."""


@dataclass(frozen=True, slots=True)
class Nothing:
    next_at: datetime | None
    """When time alone changes the answer; None: never."""


Readiness = Activate | Reconnect | Fail | Finish | Progress | Launch | Nothing


def decide_readiness(reservation: Reservation, seen: ServerSeen | None, now: datetime, timing: Timing) -> Readiness:
    if reservation.status is Status.PREPARING:
        return _while_preparing(reservation, seen, now, timing)
    if reservation.status is Status.ACTIVE:
        return _while_active(reservation, seen, now)
    return Nothing(None)


def _while_preparing(reservation: Reservation, seen: ServerSeen | None, now: datetime, timing: Timing) -> Readiness:
    if seen is not None and seen.phase is Phase.READY and seen.connection is not None:
        # Even past the deadline: a dev server that works is what was asked for.
        return Activate(seen.connection)
    if seen is not None and seen.phase is Phase.DEAD and not seen.lost_unwatched:
        return Fail(seen.reason or _NO_REASON)
    begun = reservation.preparing_at or reservation.created_at
    deadline = ready_by(reservation, timing)
    if now >= deadline:
        return Fail(_too_slow(reservation, seen, deadline - begun))
    if seen is None or seen.phase is Phase.DEAD:
        return _launch_when_due(reservation, now, deadline, restart=False)
    if seen.step is not None and seen.step != reservation.step:
        hears_later = in_trouble_until(reservation, timing)
        if hears_later is None or hears_later <= now:
            return Progress(seen.step)
        return Nothing(min(deadline, hears_later))
    return Nothing(deadline)


def ready_by(reservation: Reservation, timing: Timing) -> datetime:
    """When one that is being prepared must be ready at the latest."""
    usual = (reservation.preparing_at or reservation.created_at) + timing.preparing_deadline
    return reservation.prepare_by or usual


def _while_active(reservation: Reservation, seen: ServerSeen | None, now: datetime) -> Readiness:
    if reservation.expires_at is not None and now >= reservation.expires_at:
        return Nothing(None)
    if seen is None:
        # Nobody saw it die, or the death would be in the look: it went while nobody watched.
        return _launch_when_due(reservation, now, reservation.expires_at, restart=True)
    match seen.phase:
        case Phase.STARTING:
            return Nothing(None)
        case Phase.READY:
            back_as_it_was = seen.connection == reservation.connection and reservation.step is None
            if seen.connection is None or back_as_it_was:
                return Nothing(None)
            return Reconnect(seen.connection)
        case Phase.DEAD:
            if seen.run_end is not None:  # also when nobody watched: nobody wants it started again
                return Finish(seen.run_end)
            if seen.lost_unwatched:
                return _launch_when_due(reservation, now, reservation.expires_at, restart=True)
            return Fail(seen.reason or _NO_REASON)
        case _:
            assert_never(seen.phase)


def _launch_when_due(
    reservation: Reservation, now: datetime, otherwise_at: datetime | None, *, restart: bool
) -> Launch | Nothing:
    due = reservation.next_attempt_at
    if due is None or due <= now:
        return Launch(restart)
    return Nothing(due if otherwise_at is None else min(due, otherwise_at))


def _too_slow(reservation: Reservation, seen: ServerSeen | None, deadline: timedelta) -> str:
    reason = f"not ready within {_minutes(deadline)}"
    last = find_trouble(reservation) or (seen.reason or seen.step if seen is not None else None) or reservation.step
    return f"{reason}; last seen: {last}" if last else reason


def _minutes(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:.3g} minutes" if seconds >= 120 else f"{seconds:g} seconds"
