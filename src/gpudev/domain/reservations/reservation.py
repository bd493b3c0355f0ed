"""A reservation: draft, row, history event."""

import math
import re
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from gpudev.domain.cluster import Allocation, NodeShare
from gpudev.domain.ids import DiskId, ReservationId, UserId, pod_name
from gpudev.domain.queue import Estimate
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.personalization import NO_PERSONALIZATION, Personalization

WORKLOAD_NAMESPACE = "gpu-dev"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSpec:
    """The requested values: the same in the draft and in the row."""

    reservation_id: ReservationId
    user_id: UserId
    username: str
    gpu_type: str
    gpu_count: int
    node_count: int
    duration: timedelta
    ssh_public_keys: tuple[str, ...] = ()
    github_user: str | None = None
    name: str | None = None
    image: str | None = None
    command: str | None = None
    """What its client runs there, for lists. None: it named nothing."""
    priority: int = 0

    def spec_fields(self) -> dict[str, Any]:
        """As keyword arguments for a draft or reservation."""
        return {each.name: getattr(self, each.name) for each in fields(ReservationSpec)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationDraft(ReservationSpec):
    """A checked request, not yet in the database."""

    disk_name: str | None = None
    """A disk's name. None: the user's default disk, or scratch space if another live reservation has it. NO_DISK:
    scratch space."""
    scratch_reason: str | None = None
    """Why it has no disk although none was requested. None: it has one, or scratch space was requested."""
    max_wait: timedelta | None = None
    """None: no limit."""
    personalization: Personalization = NO_PERSONALIZATION


@dataclass(frozen=True, slots=True)
class SshEndpoint:
    """The SSH address, with the host key, so that clients never ask the user to trust an unknown host."""

    host: str
    port: int
    user: str
    host_key: str

    @property
    def ssh_command(self) -> str:
        return f"ssh -p {self.port} {self.user}@{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation(ReservationSpec):
    """The current row of one reservation, with its allocation."""

    seq: int
    """Order of arrival."""
    status: Status
    version: int
    created_at: datetime
    disk_id: DiskId | None = None
    disk_name: str | None = None
    scratch_reason: str | None = None
    """Why it has no disk although none was requested. None: it has one, or scratch space was requested."""
    preparing_at: datetime | None = None
    prepare_by: datetime | None = None
    """Its deadline for becoming ready, if its disk extended the usual one."""
    launched_at: datetime | None = None
    expires_at: datetime | None = None
    cancelled_at: datetime | None = None
    reservation_ended: datetime | None = None
    released_at: datetime | None = None
    estimate: Estimate | None = None
    """While it waits: the last written queue position. The published plan may be newer."""
    last_queue_update: datetime | None = None
    step: str | None = None
    """The current step, for people."""
    failure_reason: str | None = None
    exit_code: int | None = None
    """Of its command. None: none reported."""
    warned_minutes: int | None = None
    """The smallest threshold already warned of for this expires_at; an extension clears it."""
    launch_attempts: int = 0
    next_attempt_at: datetime | None = None
    wait_until: datetime | None = None
    """While it waits: when to cancel it. None: never."""
    resent_at: datetime | None = None
    """When its message was last sent again, because no processor had examined it."""
    setup_outcome: str | None = None
    """The result of its personalization, for people. None: not reported yet."""
    has_addons: bool = False
    """Collaborators or Jupyter were requested (`domain.sessions.addons`)."""
    request_id: str | None = None
    """The HTTP request that created it, for correlation in logs."""
    connection: SshEndpoint | None = None
    shares: tuple[NodeShare, ...] = field(default=())

    @property
    def pod_name(self) -> str:
        return pod_name(self.reservation_id)

    @property
    def is_released(self) -> bool:
        return self.released_at is not None

    @property
    def outcome(self) -> str | None:
        """How it ended, in a word or two. None: it has not ended."""
        if not self.status.is_terminal:
            return None
        if self.exit_code is not None and self.status is not Status.FAILED:
            return f"exit {self.exit_code}" if self.exit_code else "done"
        # Only a command that was killed leaves a reason on an expired reservation.
        is_killed = self.status is Status.EXPIRED and self.failure_reason is not None
        return "killed" if is_killed else self.status.value

    @property
    def needs_teardown(self) -> bool:
        return self.status.is_terminal and self.released_at is None

    @property
    def is_being_requeued(self) -> bool:
        """It is queued again, and its rejected placement is still being torn down. Until then it keeps that allocation
        and gets no other."""
        return self.status.is_waiting and bool(self.shares)

    def allocation(self) -> Allocation | None:
        """What it holds on nodes. None: nothing."""
        if self.is_released or not self.shares:
            return None
        until = None if self.status.is_terminal or self.is_being_requeued else self.planned_end()
        return Allocation(self.reservation_id, self.gpu_type, self.shares, until)

    def planned_end(self) -> datetime | None:
        """The planned end, known from the placement on. Before it is active, this is an estimate."""
        if self.expires_at is not None:
            return self.expires_at
        return None if self.preparing_at is None else self.preparing_at + self.duration


@dataclass(frozen=True, slots=True)
class ReservationEvent:
    """One line of a reservation's history."""

    event_id: int
    reservation_id: ReservationId
    at: datetime
    kind: str
    """submitted, queued, preparing, step, active, warning, extended, restarted, setup, expired, cancelled, failed,
    released"""
    message: str
    status: Status
    version: int


# Times in server texts: UTC, with the date unless it is today; what is left, in minutes. Beside each text, clients get
# its times as timestamps, to show them in the user's own zone.


_UTC_TIME = re.compile(r"\b(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d(?::\d\d)?) UTC\b")


def minutes_until(moment: datetime, now: datetime) -> int:
    """Rounded up, so that warnings at different thresholds have different words. Never negative."""
    return max(0, math.ceil((moment - now).total_seconds() / 60))


def format_minutes(minutes: int) -> str:
    return f"{minutes} minute{'' if minutes == 1 else 's'}"


def format_utc_time(moment: datetime, now: datetime) -> str:
    """'14:05 UTC', or '2026-03-02 14:05 UTC'."""
    moment = moment.astimezone(UTC)
    day = "" if moment.date() == now.astimezone(UTC).date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M} UTC"


def find_utc_times(text: str, written_at: datetime | None = None) -> dict[str, datetime]:
    """The times in a text, by how they are written there. Without `written_at`, only those with a date."""
    today = None if written_at is None else written_at.astimezone(UTC).date().isoformat()
    times = {}
    for match in _UTC_TIME.finditer(text):
        day = match[1] or today
        try:
            if day is not None:
                times[match[0]] = datetime.fromisoformat(f"{day}T{match[2]}").replace(tzinfo=UTC)
        except ValueError:
            continue  # part of somebody's own text, such as 99:99
    return times
