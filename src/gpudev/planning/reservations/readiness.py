"""Readiness: what a dev server's observed state means for its reservation.

`None` as state means that a complete observation did not contain it: definitely absent. Expiry is decided elsewhere.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, SshEndpoint
from gpudev.planning.reservations.requeue import find_postponement, postponed_until
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.settings import TimingSettings

_NO_REASON = "the dev server ended without a reason"


@dataclass(frozen=True, slots=True)
class Activate:
    """Ready: its time starts now."""

    connection: SshEndpoint


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Active, and ready again after a restart, or at another address than recorded."""

    connection: SshEndpoint


@dataclass(frozen=True, slots=True)
class FailReservation:
    reason: str


@dataclass(frozen=True, slots=True)
class FinishReservation:
    """Its detached command has exited."""

    command_exit: CommandExit


@dataclass(frozen=True, slots=True)
class Progress:
    """Preparing; the step has changed."""

    step: str


@dataclass(frozen=True, slots=True)
class LaunchServer:
    restart: bool
    """True: it was active and was lost; the restart goes into the history."""


@dataclass(frozen=True, slots=True)
class NoChange:
    next_at: datetime | None
    """When the passage of time alone changes the decision. None: never."""


Readiness = Activate | Reconnect | FailReservation | FinishReservation | Progress | LaunchServer | NoChange


def decide_readiness(
    reservation: Reservation, server: ServerState | None, now: datetime, timing: TimingSettings
) -> Readiness:
    if reservation.status is Status.PREPARING:
        return _while_preparing(reservation, server, now, timing)
    if reservation.status is Status.ACTIVE:
        return _while_active(reservation, server, now)
    return NoChange(None)


def _while_preparing(
    reservation: Reservation, server: ServerState | None, now: datetime, timing: TimingSettings
) -> Readiness:
    if server is not None and server.phase is ServerPhase.READY and server.connection is not None:
        # Also past the deadline: a working dev server is what the user wants.
        return Activate(server.connection)
    if server is not None and server.phase is ServerPhase.DEAD and not server.is_restartable:
        return FailReservation(server.reason or _NO_REASON)
    begun = reservation.preparing_at or reservation.created_at
    deadline = ready_by(reservation, timing)
    if now >= deadline:
        return FailReservation(_too_slow(reservation, server, deadline - begun))
    if server is None or server.phase is ServerPhase.DEAD:
        return _launch_if_due(reservation, now, deadline, restart=False)
    if server.step is not None and server.step != reservation.step:
        postponed = postponed_until(reservation, timing)
        if postponed is None or postponed <= now:
            return Progress(server.step)
        return NoChange(min(deadline, postponed))
    return NoChange(deadline)


def ready_by(reservation: Reservation, timing: TimingSettings) -> datetime:
    """The deadline of a reservation in `preparing`."""
    usual = (reservation.preparing_at or reservation.created_at) + timing.preparing_deadline
    return reservation.prepare_by or usual


def _while_active(reservation: Reservation, server: ServerState | None, now: datetime) -> Readiness:
    if reservation.expires_at is not None and now >= reservation.expires_at:
        return NoChange(None)
    if server is None:
        # It vanished unobserved: a failure would be part of the state.
        return _launch_if_due(reservation, now, reservation.expires_at, restart=True)
    match server.phase:
        case ServerPhase.STARTING:
            return NoChange(None)
        case ServerPhase.READY:
            is_unchanged = server.connection == reservation.connection and reservation.step is None
            if server.connection is None or is_unchanged:
                return NoChange(None)
            return Reconnect(server.connection)
        case ServerPhase.DEAD:
            if server.command_exit is not None:  # also after an outage: it must not be restarted
                return FinishReservation(server.command_exit)
            if server.is_restartable:
                return _launch_if_due(reservation, now, reservation.expires_at, restart=True)
            return FailReservation(server.reason or _NO_REASON)
        case _:
            assert_never(server.phase)


def _launch_if_due(
    reservation: Reservation, now: datetime, otherwise_at: datetime | None, *, restart: bool
) -> LaunchServer | NoChange:
    due = reservation.next_attempt_at
    if due is None or due <= now:
        return LaunchServer(restart)
    return NoChange(due if otherwise_at is None else min(due, otherwise_at))


def _too_slow(reservation: Reservation, server: ServerState | None, deadline: timedelta) -> str:
    reason = f"not ready within {_minutes(deadline)}"
    last = (
        find_postponement(reservation)
        or (server.reason or server.step if server is not None else None)
        or reservation.step
    )
    return f"{reason}; last step: {last}" if last else reason


def _minutes(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:.3g} minutes" if seconds >= 120 else f"{seconds:g} seconds"
