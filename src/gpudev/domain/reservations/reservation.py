"""A reservation: draft, row, history event."""

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
    """What was asked for: the same in the draft and in every later state."""

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
    priority: int = 0

    def spec_fields(self) -> dict[str, Any]:
        """As arguments of another draft or reservation."""
        return {one.name: getattr(self, one.name) for one in fields(ReservationSpec)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationDraft(ReservationSpec):
    """A checked request, not yet in the database."""

    disk_name: str | None = None
    """A named disk; None: the user's default disk if it is free, else scratch. NO_DISK: scratch."""
    max_wait: timedelta | None = None
    """None: it waits as long as it takes."""
    personalization: Personalization = NO_PERSONALIZATION


@dataclass(frozen=True, slots=True)
class SshEndpoint:
    """How to get in. The host key travels with it, so nobody is asked to trust a stranger."""

    host: str
    port: int
    user: str
    host_key: str

    @property
    def ssh_command(self) -> str:
        return f"ssh -p {self.port} {self.user}@{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation(ReservationSpec):
    """The present of one reservation: a row of the database, with its shares."""

    seq: int
    """Order of arrival."""
    status: Status
    version: int
    created_at: datetime
    disk_id: DiskId | None = None
    disk_name: str | None = None
    preparing_at: datetime | None = None
    prepare_by: datetime | None = None
    """When it must be ready at the latest, where that is not the usual time: its disk took long, or still does."""
    launched_at: datetime | None = None
    expires_at: datetime | None = None
    cancelled_at: datetime | None = None
    reservation_ended: datetime | None = None
    released_at: datetime | None = None
    estimate: Estimate | None = None
    """While it waits: where it stands, as last written. The published plan may be newer."""
    last_queue_update: datetime | None = None
    step: str | None = None
    """What is being done right now, in words."""
    failure_reason: str | None = None
    warned_minutes: int | None = None
    """The smallest expiry warning already given for the present expires_at; extending clears it."""
    launch_attempts: int = 0
    next_attempt_at: datetime | None = None
    wait_until: datetime | None = None
    """While it waits: when its owner gives it up. None: never."""
    resent_at: datetime | None = None
    """When it was last sent again because nobody had looked at it."""
    setup_outcome: str | None = None
    """What became of its owner's own set-up (dotfiles, start-up script), in words; None: nothing yet."""
    has_addons: bool = False
    """Something was wanted inside it beyond what was reserved: more users, or Jupyter (`domain.sessions.addons`)."""
    request_id: str | None = None
    """Which request made it, for the logs of whoever works on it."""
    connection: SshEndpoint | None = None
    shares: tuple[NodeShare, ...] = field(default=())

    @property
    def pod_name(self) -> str:
        return pod_name(self.reservation_id)

    @property
    def is_released(self) -> bool:
        return self.released_at is not None

    @property
    def needs_teardown(self) -> bool:
        return self.status.is_terminal and self.released_at is None

    @property
    def is_being_requeued(self) -> bool:
        """It waits again, and what it had in a place that was refused is still being taken away. Until that is gone it
        holds the place and gets no other."""
        return self.status.is_waiting and bool(self.shares)

    def allocation(self) -> Allocation | None:
        """What it keeps others from using; None when it has (or never had) nothing."""
        if self.is_released or not self.shares:
            return None
        until = None if self.status.is_terminal or self.is_being_requeued else self.planned_end()
        return Allocation(self.reservation_id, self.gpu_type, self.shares, until)

    def planned_end(self) -> datetime | None:
        """When it ends by plan: known once placed (while it is prepared, the clock has not begun)."""
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


# Times in server texts: UTC, with the day where it is not today.


def format_utc_time(moment: datetime, now: datetime) -> str:
    """'14:05 UTC', or '2026-03-02 14:05 UTC'."""
    moment = moment.astimezone(UTC)
    day = "" if moment.date() == now.astimezone(UTC).date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M} UTC"
