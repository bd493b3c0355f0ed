"""Stores of reservations: guarded writes, moves, and wake-ups on change."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.queue import Estimate, EstimateRecord, MessageCause
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft, ReservationEvent
from gpudev.ports.leases import Lease


@dataclass(frozen=True, slots=True)
class JobQuery:
    """`user_id` None: all users. Newest first; `before_seq` is the keyset cursor."""

    user_id: UserId | None
    statuses: tuple[Status, ...] = ()
    gpu_type: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    before_seq: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class ExtensionCount:
    """The number of extensions of a GPU type so far."""

    gpu_type: str
    count: int


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Limits of one user. None: no limit."""

    max_queued: int | None = None
    max_gpus: int | None = None
    disks: DiskSettings | None = None
    """Applied to a named disk that does not exist yet."""


NO_LIMITS = UserLimits()


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """Queued requests of the same type ahead of one."""

    count: int
    unplanned: int
    """Those that no published plan includes yet."""
    unplanned_duration: timedelta
    """Their total duration, one after the other."""


class ReservationStore(Protocol):
    async def submit(
        self,
        draft: ReservationDraft,
        *,
        idempotency_key: str | None,
        fingerprint: str,
        now: datetime,
        limits: UserLimits = NO_LIMITS,
    ) -> Reservation:
        """Row, history, disk claim and message in one transaction. The same key and fingerprint return the first
        answer; the same key with another fingerprint raises IdempotencyMismatch. DiskHeld names the holder.
        LimitReached is also raised if two concurrent submits together exceed a limit."""
        ...

    async def find_submission(self, user_id: UserId, idempotency_key: str, fingerprint: str) -> Reservation | None:
        """The reservation of this key. None: a new key. Raises IdempotencyMismatch as `submit`."""
        ...

    async def find_reservation(self, reservation_id: ReservationId) -> Reservation | None: ...

    async def find_by_prefix(self, prefix: str, user_id: UserId | None, limit: int = 5) -> list[Reservation]:
        """By id prefix (hex digits without dashes), unreleased first, then newest."""
        ...

    async def list_jobs(self, query: JobQuery) -> list[Reservation]: ...

    async def unreleased(self, gpu_type: str | None = None) -> list[Reservation]:
        """All unreleased reservations, by arrival."""
        ...

    async def count_ahead(self, reservation: Reservation, planned_seq: int, overhead: timedelta) -> QueueAhead:
        """`planned_seq`: the last arrival in the published plan; `overhead`: added to each duration."""
        ...

    async def apply_change(
        self,
        change: Change,
        *,
        now: datetime,
        cause: MessageCause | None = None,
        extension_count: ExtensionCount | None = None,
    ) -> Reservation:
        """One guarded write (a user's act). With a cause, a message is sent. Raises Stale, also if another reservation
        of the type was extended since `extension_count` was read."""
        ...

    async def extensions(self, gpu_type: str) -> ExtensionCount:
        """Read it before the facts from which an extension is decided."""
        ...

    async def apply_decisions(
        self,
        lease: Lease,
        changes: Sequence[Change],
        updates: Mapping[ReservationId, Estimate],
        acknowledge: Sequence[int],
        *,
        now: datetime,
        teardown_margin: timedelta,
        estimates: Sequence[EstimateRecord] = (),
    ) -> frozenset[ReservationId]:
        """The planning loop's changes, estimates and acknowledgements, in one transaction. Returns the changes that
        were not stale. Raises LeaseLost; then nothing is written."""
        ...

    async def events(self, reservation_id: ReservationId, after: int = 0) -> list[ReservationEvent]: ...


class UnreleasedView(Protocol):
    """All unreleased reservations, cached for frequent readers."""

    async def refresh(self) -> list[Reservation]: ...


# Moves of reservations to other nodes.


class MoveStore(Protocol):
    async def begin_move(self, change: Change, *, now: datetime) -> None:
        """The guarded end of a reservation that moves; raises Stale. Its personalization and addons are kept until the
        move is finished."""
        ...

    async def list_unfinished_moves(self) -> Sequence[ReservationId]:
        """Moves begun and not finished, oldest first."""
        ...

    async def finish_move(self, left: ReservationId, change: Change | None, *, now: datetime) -> None:
        """Transfers collaborators and Jupyter to the successor of `change`, once, and deletes what was kept. None: no
        successor. Raises Stale."""
        ...


# Notification of changes, instead of polling.


class ReservationChanges(Protocol):
    def subscribe(self, reservation_id: ReservationId) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Yields after each change of this reservation. Several changes may be merged, and one may be lost with the
        connection: a wake-up means "read again" and carries no data."""
        ...
