"""The queue: messages, published plans, estimates, and what the planner has examined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import EstimateOutcome, QueuePlan, UsageSample
from gpudev.ports.leases import Lease


@dataclass(frozen=True, slots=True)
class QueueMessage:
    msg_id: int
    read_count: int
    enqueued_at: datetime
    body: dict[str, Any]


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


class MessageQueue(Protocol):
    async def read(self, queue: str, lease_for: timedelta, limit: int) -> list[QueueMessage]: ...

    async def fail(self, queue: str, message: QueueMessage, error: str, *, now: datetime) -> bool:
        """Count a failure: back to the queue with backoff, or, the third time, to the dead-letter queue, when
        the reservation it is about fails with the reason. True when it was dead-lettered."""
        ...

    async def acknowledge(self, queue: str, messages: Sequence[int]) -> None:
        """They have been looked at."""
        ...


@dataclass(frozen=True, slots=True)
class PlanningRecords:
    """How the processor that plans gets on."""

    at: datetime | None
    """When it last looked at the queues, with the cluster in sight. None: never, or nobody plans now."""
    since: datetime | None
    """Since when it has done so without a long break."""
    by_type: Mapping[str, tuple[datetime, frozenset[int]]] = field(default_factory=dict)
    """When a type's queue was last looked at, and whom (by seq) that was."""


class PlanningRecordStore(Protocol):
    async def record_examined(self, lease: Lease, by_type: Mapping[str, Sequence[int]], now: datetime) -> None:
        """Whom the holder of the lease has just looked at, with the cluster in sight. Nothing if it is another's."""
        ...

    async def load_planning_records(self) -> PlanningRecords: ...

    async def load_orphans(self) -> Mapping[ReservationId, datetime]:
        """Dev servers without a reservation, as runs that do not stay first saw them."""
        ...

    async def save_orphans(self, first_observed: Mapping[ReservationId, datetime]) -> None:
        """All there are now; what was known of others is forgotten."""
        ...
