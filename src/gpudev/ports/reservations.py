"""Stores of reservations: guarded writes, moves, and wake-ups on change."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpudev.domain.access.users import ApiKey, FairShareUsage, IssuedKey, Role, User
from gpudev.domain.cluster import Catalogue, GpuType, Node, NodeShare
from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.queue import Estimate, EstimateOutcome, EstimateRecord, MessageCause, QueuePlan, UsageSample
from gpudev.domain.reservations.lifecycle import Status, check_transition
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft, ReservationEvent, SshEndpoint


@dataclass(frozen=True, slots=True)
class NewEvent:
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Change:
    """One guarded write to one reservation. `to` None: the status stays (the version still goes up).

    `fields` sets columns by their names (values JSON can carry: str, int, float, bool, None, aware datetimes,
    lists of str). `shares` replaces what it holds; `release` frees GPUs and disk and sets released_at.
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
    """When set: the error with which a message about this reservation goes to the dead-letter queue."""

    def __post_init__(self) -> None:
        if self.to is not None:
            check_transition(self.status, self.to)


def connection_fields(connection: SshEndpoint) -> dict[str, Any]:
    """A connection as the columns that hold it."""
    return {
        "node_ip": connection.host,
        "node_port": connection.port,
        "ssh_user": connection.user,
        "ssh_command": connection.ssh_command,
        "ssh_host_key": connection.host_key,
    }


@dataclass(frozen=True, slots=True)
class QueueUpdate:
    """Where a waiting reservation stands. Not guarded by version and no history: told, not decided."""

    reservation_id: ReservationId
    estimate: Estimate
    estimated_start_at: datetime | None
    """By the planned ends, without the time that clearing away may take."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to plan. Writes that carry an older epoch change nothing."""

    name: str
    holder: str
    epoch: int


@dataclass(frozen=True, slots=True)
class QueueMessage:
    msg_id: int
    read_count: int
    enqueued_at: datetime
    body: dict[str, Any]


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
        updates: Sequence[QueueUpdate],
        acknowledge: Sequence[int],
        *,
        now: datetime,
        estimates: Sequence[EstimateRecord] = (),
    ) -> frozenset[ReservationId]:
        """The planning loop's decisions, what it tells people and its acknowledgements, in one transaction.
        Answers which changes were still true and so took effect. Raises LeaseLost, having changed nothing."""
        ...

    async def events(self, reservation_id: ReservationId, after: int = 0) -> list[ReservationEvent]: ...


class PlanView(Protocol):
    """The queue's plan as the processor last made it, for those who tell people about it."""

    async def refresh(self) -> Mapping[str, QueuePlan]:
        """By GPU type; cheap while nothing changed."""
        ...


class PlanStore(PlanView, Protocol):
    async def publish_plans(self, lease: Lease, plans: Sequence[QueuePlan]) -> None: ...


class EstimateStore(Protocol):
    """What people were told, and what became of it. The oldest first."""

    async def list_usage_samples(self, per_type: int) -> list[UsageSample]:
        """Of those who left last."""
        ...

    async def outcomes(self, per_type: int) -> list[EstimateOutcome]:
        """Of those who started last."""
        ...

    async def outcomes_since(self, since: datetime) -> list[EstimateOutcome]:
        """Of those who started since then, and of those who wait still."""
        ...


class UnreleasedView(Protocol):
    """Everything that waits, runs, or still holds something: for whoever looks at all of it often."""

    async def refresh(self) -> list[Reservation]: ...


class NodeStore(Protocol):
    """Nodes as the processor last saw them, for those who have no cluster at hand (the API)."""

    async def publish_nodes(self, lease: Lease, nodes: Sequence[Node], observed_at: datetime) -> None: ...

    async def nodes(self, gpu_type: str | None = None) -> tuple[list[Node], datetime | None]: ...


@dataclass(frozen=True, slots=True)
class AvailabilityRow:
    """One type's availability columns, as last observed."""

    gpu_type: str
    total_cluster_gpus: int
    available_gpus: int
    max_reservable: int
    full_nodes_available: int
    running_instances: int
    desired_capacity: int
    max_per_node: int
    updated_at: datetime | None
    updated_by: str | None


class CatalogueStore(Protocol):
    async def catalogue(self) -> Catalogue:
        """All types, also those that are not offered: their nodes and reservations are still there."""
        ...

    async def update_gpu_type(self, name: str, *, is_active: bool | None, description: str | None) -> GpuType:
        """None: as it is. Raises NotFound."""
        ...

    async def save_gpu_types(self, types: Sequence[GpuType]) -> None:
        """Set the rows of types that the cluster itself describes (one machine)."""
        ...

    async def availability(self) -> list[AvailabilityRow]: ...

    async def publish_availability(self, lease: Lease, facts: Sequence[AvailabilityRow]) -> None: ...


class LeaseStore(Protocol):
    async def acquire(self, name: str, holder: str, ttl: timedelta) -> Lease | None:
        """Take or keep the lease by the database's clock; None while another's heartbeat is fresh.
        The epoch goes up whenever the holder changes."""
        ...

    async def release(self, lease: Lease) -> None: ...

    async def is_held(self, name: str) -> bool:
        """Whether anybody's heartbeat is fresh."""
        ...


class MessageQueue(Protocol):
    async def read(self, queue: str, lease_for: timedelta, limit: int) -> list[QueueMessage]: ...

    async def fail(self, queue: str, message: QueueMessage, error: str, *, now: datetime) -> bool:
        """Count a failure: back to the queue with backoff, or, the third time, to the dead-letter queue, when
        the reservation it is about fails with the reason. True when it was dead-lettered."""
        ...

    async def acknowledge(self, queue: str, messages: Sequence[int]) -> None:
        """They have been looked at."""
        ...


class UserStore(Protocol):
    async def add_user(self, username: str, role: Role) -> User: ...

    async def find_user(self, username: str) -> User | None: ...

    async def list_users(self) -> list[User]: ...

    async def set_weight(self, username: str, weight: float) -> None:
        """For fair share. NotFound when there is no such user."""
        ...

    async def usage(self, now: datetime, half_life: timedelta) -> dict[UserId, FairShareUsage]:
        """Of every active user, from what has ended; what ended one half-life ago counts half."""
        ...

    async def issue_key(self, user_id: UserId, ttl: timedelta | None, description: str) -> IssuedKey:
        """Raises Forbidden for a user who is disabled."""
        ...

    async def find_key(self, secret: str) -> ApiKey | None:
        """The key if it may be used now: active, not past its end, its user active."""
        ...

    async def rotate_key(self, key_id: int, ttl: timedelta | None) -> IssuedKey:
        """Issue a new key and revoke this one, in one transaction. The key of somebody whom a provider vouched for
        is replaced by one that ends when it would have ended."""
        ...

    async def revoke_key(self, key_id: int) -> bool:
        """Whether it was still in use until now."""
        ...


# Reservations that are on their way from one place to another, and what goes along with them.


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


# Being told that a reservation, or somebody's access, changed, instead of asking again and again.


class ReservationChanges(Protocol):
    def subscribe(self, reservation_id: ReservationId) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Yields after each change of this one, from entering on. Several changes may come as one, and one may be
        lost with the connection: a wake-up says "look", never what there is to see."""
        ...


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A key, or all keys of a user, may mean something else from now on. Both None: any key may."""

    key_id: int | None = None
    user_id: int | None = None


class AccessChanges(Protocol):
    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        """Calls `heard` for every change, and with an empty one whenever some may have been missed."""
        ...

    def is_fresh(self) -> bool:
        """Whether every change that is older than a second has been heard. Asking keeps it so."""
        ...


class NoAccessChanges:
    """Nothing is ever heard: whoever remembers keys must ask again every second."""

    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        return None

    def is_fresh(self) -> bool:
        return False


NO_ACCESS_CHANGES = NoAccessChanges()
