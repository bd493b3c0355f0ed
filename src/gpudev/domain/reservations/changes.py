"""Changes of a reservation: for each act, what it expects, what it sets, and its line of history.

Nothing else constructs a `Change`. Each constructor takes the reservation as it was read, and the change expects its
status and version: a row that has changed since is not written. Other modules decide when a change is due.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.lifecycle import Status, check_transition
from gpudev.domain.reservations.reservation import Reservation, SshEndpoint

TIME_IS_OVER = "its time is over"
"""The history line of `expired`."""
STARTING = "starting the dev server"
"""The step of a reservation that has its placement and its disk."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Change:
    """One guarded write to one reservation. `to` None: the status stays (the version still increases).

    `fields` sets columns by their names (values JSON can carry: str, int, float, bool, None, aware datetimes,
    lists of str). `shares` replaces its allocation; `release` frees GPUs and disk and sets released_at.
    """

    reservation_id: ReservationId
    status: Status
    version: int
    event: NewEvent | None
    to: Status | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    shares: tuple[NodeShare, ...] | None = None
    release: bool = False
    dead_letter: str | None = None
    """If set, a message about this reservation goes to the dead-letter queue with this error."""

    def __post_init__(self) -> None:
        if self.to is not None:
            check_transition(self.status, self.to)


# --- waiting ---------------------------------------------------------------------------------------------------------


def queued(row: Reservation, estimate: Estimate, now: datetime, teardown_margin: timedelta) -> Change:
    """The first examination found no free placement."""
    when = f", starts by {estimate.latest:%Y-%m-%d %H:%M} UTC at the latest" if estimate.latest else ""
    event = NewEvent("queued", f"waits at position {estimate.position}{when}: {estimate.reason}")
    return _move(row, Status.QUEUED, event, estimate_columns(estimate, now, teardown_margin))


def delayed(
    row: Reservation,
    estimate: Estimate,
    now: datetime,
    teardown_margin: timedelta,
    *,
    promised: datetime | None,
    why: str,
) -> Change:
    """Its guaranteed start became later than `promised`."""
    before = f" instead of {promised:%Y-%m-%d %H:%M} UTC" if promised else ""
    when = f"now by {estimate.latest:%Y-%m-%d %H:%M} UTC{before}" if estimate.latest else "no new estimate yet"
    event = NewEvent("delayed", f"start delayed, {when}: {why}")
    return _update(row, event, estimate_columns(estimate, now, teardown_margin))


def prioritised(row: Reservation, priority: int, by: str) -> Change:
    event = NewEvent("priority", f"{by} set its priority to {priority} (it was {row.priority})")
    return _update(row, event, {"priority": priority})


def resent(row: Reservation, now: datetime, unexamined_for: str) -> Change:
    """No processor examined it, so its message is sent again."""
    event = NewEvent("sent_again", f"not examined for {unexamined_for}; sent again")
    return _update(row, event, {"resent_at": now})


def requeued(row: Reservation, why: str) -> Change:
    """Back to its queue position (by arrival). It keeps its allocation until the teardown is confirmed."""
    fields = {"preparing_at": None, "prepare_by": None, "step": None, "next_attempt_at": None, "launch_attempts": 0}
    return _move(row, Status.QUEUED, NewEvent("queued", f"requeued: {why}"), fields)


def withdrawn(row: Reservation) -> Change:
    """The rejected placement is torn down: it may be placed again."""
    return Change(row.reservation_id, row.status, row.version, event=None, shares=())


# --- being prepared --------------------------------------------------------------------------------------------------


def preparing(row: Reservation, shares: tuple[NodeShare, ...], now: datetime) -> Change:
    unit = "GPU" if row.gpu_count else "CPU slot"
    places = ", ".join(f"{share.units} {unit}{'s' * (share.units > 1)} on {share.node}" for share in shares)
    return Change(
        row.reservation_id,
        row.status,
        row.version,
        NewEvent("preparing", f"placed: {places}"),
        to=Status.PREPARING,
        fields={"preparing_at": now, "step": STARTING, "launch_attempts": 0},
        shares=shares,
    )


def step_recorded(row: Reservation, step: str) -> Change:
    return _update(row, NewEvent("step", step), {"step": step})


def disk_step_recorded(row: Reservation, step: str, deadline: datetime) -> Change:
    """A step of its disk. The first one sets the disk's deadline."""
    fields: dict[str, Any] = {"step": step}
    if row.status is Status.PREPARING and row.prepare_by is None:
        fields["prepare_by"] = deadline
    return _update(row, NewEvent("step", step), fields)


def disk_ready(row: Reservation, how: str, deadline: datetime) -> Change:
    """After a wait for its disk, or with a new volume. From now on the dev server's deadline applies."""
    fields: dict[str, Any] = {"step": STARTING}
    if row.status is Status.PREPARING and row.prepare_by is not None:
        fields["prepare_by"] = deadline
    return _update(row, NewEvent("step", f"disk {row.disk_name!r}: {how}"), fields)


def launch_postponed(row: Reservation, next_attempt_at: datetime, step: str | None) -> Change:
    """Counts no attempt. `step` None: already in the history."""
    if step is None:
        return _update(row, None, {"next_attempt_at": next_attempt_at})
    return _update(row, NewEvent("step", step), {"next_attempt_at": next_attempt_at, "step": step})


def launch_retried(row: Reservation, error: str, next_attempt_at: datetime, max_attempts: int) -> Change:
    attempts = row.launch_attempts + 1
    text = f"start failed (attempt {attempts} of {max_attempts}), trying again: {error}"
    fields = {"launch_attempts": attempts, "next_attempt_at": next_attempt_at, "step": f"trying again: {error}"}
    return _update(row, NewEvent("step", text), fields)


# --- active ----------------------------------------------------------------------------------------------------------


def activated(row: Reservation, connection: SshEndpoint, now: datetime) -> Change:
    """Ready: its time starts now."""
    fields = _ready_fields(connection) | {"launched_at": now, "expires_at": now + row.duration}
    return _move(row, Status.ACTIVE, NewEvent("active", f"ready: {connection.ssh_command}"), fields)


def reconnected(row: Reservation, connection: SshEndpoint) -> Change:
    return _update(row, NewEvent("reconnected", f"ready again: {connection.ssh_command}"), _ready_fields(connection))


def restarted(row: Reservation) -> Change:
    event = NewEvent("restarted", "the dev server was lost; restarting it")
    return _update(row, event, {"step": "starting again"})


def node_lost(row: Reservation, step: str) -> Change:
    event = NewEvent("node_lost", f"{step}; the dev server may not be reachable until it does")
    return _update(row, event, {"step": step})


def setup_reported(row: Reservation, outcome: str) -> Change:
    """The result of its personalization."""
    return _update(row, NewEvent("setup", outcome), {"setup_outcome": outcome})


def warned(row: Reservation, minutes: int, left: str) -> Change:
    """`minutes`: the threshold that was passed; `left`: the time left, as text."""
    return _update(row, NewEvent("warning", f"ends in {left}"), {"warned_minutes": minutes})


def extended(row: Reservation, hours: float, until: datetime) -> Change:
    """Warnings are re-armed."""
    event = NewEvent("extended", f"extended by {hours:g} hours, until {until:%Y-%m-%d %H:%M} UTC")
    return _update(row, event, {"expires_at": until, "warned_minutes": None})


def event_recorded(row: Reservation, kind: str, message: str) -> Change:
    """Only a line of history."""
    return _update(row, NewEvent(kind, message), {})


# --- over ------------------------------------------------------------------------------------------------------------


def expired(row: Reservation) -> Change:
    return _move(row, Status.EXPIRED, NewEvent("expired", TIME_IS_OVER), {"step": None})


def command_ended(row: Reservation, command_exit: CommandExit) -> Change:
    """Its detached command has exited, with or without success."""
    failure = None if command_exit.exit_code == 0 else command_exit.summary
    fields = {"failure_reason": failure, "exit_code": command_exit.exit_code, "step": None}
    return _move(row, Status.EXPIRED, NewEvent("expired", command_exit.message), fields)


def cancelled(
    row: Reservation, message: str, now: datetime, failure_reason: str | None = None, *, exit_code: int | None = None
) -> Change:
    """`failure_reason`: if the owner did not cancel it. `exit_code`: of the command that its client ran. A queued
    request without an allocation is released at once."""
    fields: dict[str, Any] = {"cancelled_at": now, "step": None}
    if exit_code is not None:
        fields["exit_code"] = exit_code
    if failure_reason is not None:
        fields["failure_reason"] = failure_reason
    return Change(
        row.reservation_id,
        row.status,
        row.version,
        NewEvent("cancelled", message),
        to=Status.CANCELLED,
        fields=fields,
        release=row.status.is_waiting and not row.is_being_requeued,
    )


def failed(row: Reservation, reason: str) -> Change:
    return _move(row, Status.FAILED, NewEvent("failed", reason), {"failure_reason": reason, "step": None})


def launch_failed(row: Reservation, error: str) -> Change:
    """The last attempt failed; its message becomes a dead letter."""
    attempts = row.launch_attempts + 1
    reason = f"the dev server could not be started ({attempts} attempts): {error}"
    return Change(
        row.reservation_id,
        row.status,
        row.version,
        NewEvent("failed", reason),
        to=Status.FAILED,
        fields={"failure_reason": reason, "launch_attempts": attempts, "step": None},
        dead_letter=error,
    )


def released(row: Reservation, disk_outcome: str | None = None) -> Change:
    """`disk_outcome`: the result of putting its disk away, as text."""
    disk = "" if disk_outcome is None else f" (disk {row.disk_name!r}: {disk_outcome})"
    event = NewEvent("released", f"released: dev server removed, GPUs and disk freed{disk}")
    return Change(row.reservation_id, row.status, row.version, event, release=True)


# --- columns ---------------------------------------------------------------------------------------------------------


def estimate_columns(estimate: Estimate, now: datetime, teardown_margin: timedelta) -> dict[str, Any]:
    """An estimate as columns. `teardown_margin`: the part of the guaranteed start that is reserved for a teardown."""
    starts_at = None if estimate.latest is None else estimate.latest - teardown_margin
    interval = estimate.interval
    awaited = interval.expected if interval else starts_at
    return {
        "queue_position": estimate.position,
        "estimated_start_at": starts_at,
        "estimated_wait_minutes": awaited and max(0, math.ceil((awaited - now) / timedelta(minutes=1))),
        "latest_start_at": estimate.latest,
        "expected_start_at": interval and interval.expected,
        "expected_earliest_at": interval and interval.earliest,
        "expected_latest_at": interval and interval.latest_likely,
        "wait_reason": estimate.reason,
        "last_queue_update": now,
    }


def _ready_fields(connection: SshEndpoint) -> dict[str, Any]:
    return {
        "node_ip": connection.host,
        "node_port": connection.port,
        "ssh_user": connection.user,
        "ssh_command": connection.ssh_command,
        "ssh_host_key": connection.host_key,
        "step": None,
        "next_attempt_at": None,
        "launch_attempts": 0,
    }


def _move(row: Reservation, to: Status, event: NewEvent, fields: Mapping[str, Any]) -> Change:
    return Change(row.reservation_id, row.status, row.version, event, to=to, fields=dict(fields))


def _update(row: Reservation, event: NewEvent | None, fields: Mapping[str, Any]) -> Change:
    return Change(row.reservation_id, row.status, row.version, event, fields=dict(fields))
