"""One planning cycle for running reservations: their observed state, and what follows from it.

Combines expiry and readiness (`planning.queue.queue_cycle` adds the queue) into guarded changes and effects. At most
one change per reservation and cycle: each is guarded by the version that was read.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import assert_never

from gpudev.domain.ids import short_id
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, format_minutes, format_utc_time, minutes_until
from gpudev.planning.decisions import Decisions
from gpudev.planning.reservations.expiry import Expire, Warn, decide_expiry
from gpudev.planning.reservations.expiry import NotDue as NotYet
from gpudev.planning.reservations.readiness import (
    Activate,
    FailReservation,
    FinishReservation,
    LaunchServer,
    NoChange,
    Progress,
    Reconnect,
    decide_readiness,
    ready_by,
)
from gpudev.planning.reservations.requeue import RejectedPlacements
from gpudev.planning.reservations.stale_requests import decide_max_wait
from gpudev.ports.cluster import ClusterState, ServerPhase, ServerState
from gpudev.settings import TimingSettings

# The result of the personalization is recorded once, as a line of history.
#
# A dotfiles repository that cannot be cloned, or a script that fails, never ends a reservation.


def decide_personalization(reservation: Reservation, server: ServerState | None) -> Change | None:
    if server is None or server.setup_outcome is None or reservation.status is not Status.ACTIVE:
        return None
    if server.setup_outcome == reservation.setup_outcome:
        return None
    return changes.setup_reported(reservation, server.setup_outcome)


def decide_running(
    reservations: Sequence[Reservation],
    state: ClusterState | None,
    now: datetime,
    timing: TimingSettings,
    is_launch_incomplete: Callable[[Reservation], bool] = lambda _: False,
) -> Decisions:
    """Decides for reservations that are active, preparing or ended. Without a state of the cluster only the time
    decides. `is_launch_incomplete`: the launch may have been interrupted, so objects may be missing."""
    decisions = Decisions()
    rejected = RejectedPlacements.from_state(state, reservations) if state is not None else None
    for reservation in reservations:
        if reservation.needs_teardown:
            _decide_ended(reservation, decisions)
        elif reservation.is_being_requeued:
            decisions.withdrawals.append(reservation)
        elif not reservation.status.holds_capacity or _decide_time(reservation, now, timing, decisions):
            pass
        elif state is not None and rejected is not None and (why := rejected.find_reason(reservation)) is not None:
            decisions.changes.append(changes.requeued(reservation, why))
        elif state is not None and not _decide_lost(reservation, state, decisions):
            _decide_server(reservation, state, now, timing, decisions)
            if is_launch_incomplete(reservation):
                _complete_launch(reservation, now, decisions)
    return decisions


def _decide_ended(reservation: Reservation, decisions: Decisions) -> None:
    if reservation.shares:
        decisions.teardowns.append(reservation)
    else:  # it never had a placement
        decisions.changes.append(changes.released(reservation))


def _decide_time(reservation: Reservation, now: datetime, timing: TimingSettings, decisions: Decisions) -> bool:
    """True: expiry or a warning decided this cycle."""
    match decide_expiry(reservation, now, timing):
        case Expire():
            decisions.changes.append(changes.expired(reservation))
            return True
        case Warn(minutes, left):
            # With the time of day, because users who log in later also see it.
            end = format_utc_time(reservation.expires_at, now) if reservation.expires_at else "soon"
            extend = f"gpu-dev extend {short_name(reservation)}"
            in_minutes = format_minutes(minutes_until(now + left, now))
            text = f"gpu-dev: this dev server ends at {end}, in {in_minutes} ({extend})"
            decisions.changes.append(changes.warned(reservation, minutes, in_minutes))
            decisions.messages.append((reservation.reservation_id, text))
            return True
        case NotYet(next_at):
            decisions.recheck_at(next_at)
            return False
        case other:
            assert_never(other)


def _decide_lost(reservation: Reservation, state: ClusterState, decisions: Decisions) -> bool:
    """True: one of its nodes is lost, so nothing else is decided. Recorded once. The node may come back, so nothing
    ends until the dev server is known to be gone."""
    nodes = {node.name: node for node in state.nodes}
    lost = [s.node for s in reservation.shares if s.node not in nodes or not nodes[s.node].ready]
    server = state.servers.get(reservation.reservation_id)
    if not lost or (server is not None and server.phase is ServerPhase.DEAD):
        return False
    names = " and ".join(f"node {name}" for name in lost)
    if server is None and reservation.status is Status.ACTIVE and not any(name in nodes for name in lost):
        decisions.changes.append(changes.failed(reservation, f"{names} was lost, and the dev server with it"))
        return True
    step = f"{names} does not answer"
    if reservation.step != step:
        decisions.changes.append(changes.node_lost(reservation, step))
        return True
    return reservation.status is Status.ACTIVE


def _decide_server(
    reservation: Reservation, state: ClusterState, now: datetime, timing: TimingSettings, decisions: Decisions
) -> None:
    match decide_readiness(reservation, state.servers.get(reservation.reservation_id), now, timing):
        case Activate(connection):
            decisions.changes.append(changes.activated(reservation, connection, now))
        case Reconnect(connection):
            decisions.changes.append(changes.reconnected(reservation, connection))
        case FailReservation(reason):
            decisions.changes.append(changes.failed(reservation, reason))
        case FinishReservation(command_exit):
            decisions.changes.append(changes.command_ended(reservation, command_exit))
        case Progress(step):
            decisions.changes.append(changes.step_recorded(reservation, step))
        case LaunchServer(restart):
            if restart and reservation.step is None:
                decisions.changes.append(changes.restarted(reservation))
            decisions.launches.append(reservation)
        case NoChange(next_at):
            decisions.recheck_at(next_at)
            change = decide_personalization(reservation, state.servers.get(reservation.reservation_id))
            if change is not None:
                decisions.changes.append(change)
        case other:
            assert_never(other)


def _complete_launch(reservation: Reservation, now: datetime, decisions: Decisions) -> None:
    """Runs the launch again, whatever exists already: a launch is idempotent."""
    rid = reservation.reservation_id
    is_over = any(
        change.reservation_id == rid and change.to is not None and change.to.is_terminal
        for change in decisions.changes[-1:]
    )
    if is_over or any(other.reservation_id == rid for other in decisions.launches[-1:]):
        return
    if reservation.next_attempt_at is None or reservation.next_attempt_at <= now:
        decisions.launches.append(reservation)
    else:
        decisions.recheck_at(reservation.next_attempt_at)


def short_name(reservation: Reservation) -> str:
    return short_id(reservation.reservation_id)


# Expiry without a running processor (used by `expire`). Starts nothing and treats nothing as lost.


def decide_without_processor(
    reservations: Sequence[Reservation], state: ClusterState | None, now: datetime, timing: TimingSettings
) -> Decisions:
    over = [row for row in reservations if row.needs_teardown or _is_over(row, now, timing)]
    decisions = decide_running(over, state, now, timing)
    running = [row for row in reservations if row.status is Status.ACTIVE and not _is_over(row, now, timing)]
    # Without a state only the time decides: a warning, or nothing.
    decisions.add(decide_running(running, None, now, timing))
    decisions.add(decide_max_wait(reservations, now))
    return decisions


def _is_over(row: Reservation, now: datetime, timing: TimingSettings) -> bool:
    if row.status is Status.PREPARING and row.preparing_at is not None:
        return ready_by(row, timing) <= now
    return row.expires_at is not None and row.expires_at <= now
