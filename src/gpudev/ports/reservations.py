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
    """`user_id` None: everybody's. Newest first; `before_seq` is the keyset cursor."""

    user_id: UserId | None
    statuses: tuple[Status, ...] = ()
    gpu_type: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    before_seq: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class ExtensionCount:
    """How many extensions a GPU type has seen."""

    gpu_type: str
    count: int


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What one user may have at once. None: no limit."""

    max_queued: int | None = None
    max_gpus: int | None = None
    disks: DiskSettings | None = None
    """Held against a disk that is asked for by name and is not there yet."""


NO_LIMITS = UserLimits()


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """Those who wait for the same type and come before one."""

    count: int
    unplanned: int
    """Of these, how many no published plan knows yet."""
    unplanned_duration: timedelta
    """How long those take together, if they go one after the other."""


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
        """Row, history, disk claim and message in one transaction. The same key and fingerprint give the
        first answer again; the same key with another fingerprint raises IdempotencyMismatch. DiskHeld names
        the holder. LimitReached also when two submits at once would go beyond a limit together."""
        ...

    async def find_submission(self, user_id: UserId, idempotency_key: str, fingerprint: str) -> Reservation | None:
        """What this key was answered with; None when it is new. IdempotencyMismatch as with `submit`."""
        ...

    async def find_reservation(self, reservation_id: ReservationId) -> Reservation | None: ...

    async def find_by_prefix(self, prefix: str, user_id: UserId | None, limit: int = 5) -> list[Reservation]:
        """Those whose id begins so (hex digits, dashes ignored), the unreleased and newest first."""
        ...

    async def list_jobs(self, query: JobQuery) -> list[Reservation]: ...

    async def unreleased(self, gpu_type: str | None = None) -> list[Reservation]:
        """Everything that waits, runs, or still holds something, by arrival."""
        ...

    async def count_ahead(self, reservation: Reservation, planned_seq: int, around: timedelta) -> QueueAhead:
        """`planned_seq`: the last one that the published plan knows; `around`: what each takes beside its hours."""
        ...

    async def apply_change(
        self,
        change: Change,
        *,
        now: datetime,
        cause: MessageCause | None = None,
        extension_count: ExtensionCount | None = None,
    ) -> Reservation:
        """One guarded write (a user's act). With a cause, a message goes with it. Raises Stale, also when somebody
        else of the same type was extended since `extends` was read."""
        ...

    async def extensions(self, gpu_type: str) -> ExtensionCount:
        """To be read before the facts that an extension is decided by."""
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
        """The planning loop's decisions, what it tells people and its acknowledgements, in one transaction.
        Answers which changes were still true and so took effect. Raises LeaseLost, having changed nothing."""
        ...

    async def events(self, reservation_id: ReservationId, after: int = 0) -> list[ReservationEvent]: ...


class UnreleasedView(Protocol):
    """Everything that waits, runs, or still holds something: for whoever looks at all of it often."""

    async def refresh(self) -> list[Reservation]: ...


# Moves of reservations to other nodes.


class MoveStore(Protocol):
    async def begin_move(self, change: Change, *, now: datetime) -> None:
        """The guarded end of one that goes on elsewhere; Stale when that is no longer true. From now on what its owner
        brought, and what was wanted inside, is kept until it has gone on."""
        ...

    async def list_unfinished_moves(self) -> Sequence[ReservationId]:
        """Those that have left and not gone on, the first to leave first."""
        ...

    async def finish_move(self, left: ReservationId, change: Change | None, *, now: datetime) -> None:
        """Hands over, once, what was wanted inside the one that left to the one that `change` tells of it: added users
        and Jupyter. What it leaves behind is forgotten. None: it goes on as nothing. Stale as above."""
        ...


# Notification of changes, instead of polling.


class ReservationChanges(Protocol):
    def subscribe(self, reservation_id: ReservationId) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Yields after each change of this one, from entering on. Several changes may come as one, and one may be
        lost with the connection: a wake-up says "look", never what there is to see."""
        ...
