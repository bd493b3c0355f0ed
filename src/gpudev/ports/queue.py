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
    """The plan as last published by the processor."""

    async def refresh(self) -> Mapping[str, QueuePlan]:
        """By GPU type; cheap if nothing changed."""
        ...


class PlanStore(PlanView, Protocol):
    async def publish_plans(self, lease: Lease, plans: Sequence[QueuePlan]) -> None: ...


class EstimateStore(Protocol):
    """Recorded estimates and actual starts, oldest first."""

    async def list_usage_samples(self, per_type: int) -> list[UsageSample]:
        """Of the latest ended reservations."""
        ...

    async def outcomes(self, per_type: int) -> list[EstimateOutcome]:
        """Of the latest starts."""
        ...

    async def outcomes_since(self, since: datetime) -> list[EstimateOutcome]:
        """Of starts since then, and of queued requests."""
        ...


class MessageQueue(Protocol):
    async def read(self, queue: str, lease_for: timedelta, limit: int) -> list[QueueMessage]: ...

    async def fail(self, queue: str, message: QueueMessage, error: str, *, now: datetime) -> bool:
        """Counts a failure: back to the queue with backoff; the third time to the dead-letter queue, and its
        reservation fails with the reason. True: dead-lettered."""
        ...

    async def acknowledge(self, queue: str, messages: Sequence[int]) -> None:
        """They have been examined."""
        ...


@dataclass(frozen=True, slots=True)
class PlanningRecords:
    """What the planning processor has examined, and when."""

    at: datetime | None
    """When it last examined the queues with a known cluster state. None: never, or no processor plans now."""
    since: datetime | None
    """Since when it has done so without a long gap."""
    by_type: Mapping[str, tuple[datetime, frozenset[int]]] = field(default_factory=dict)
    """By type: when its queue was last examined, and up to which seq."""


class PlanningRecordStore(Protocol):
    async def record_examined(self, lease: Lease, by_type: Mapping[str, Sequence[int]], now: datetime) -> None:
        """What the lease holder has just examined with a known cluster state. No effect with a lost lease."""
        ...

    async def load_planning_records(self) -> PlanningRecords: ...

    async def load_orphans(self) -> Mapping[ReservationId, datetime]:
        """First observations of orphans, kept for short-lived commands."""
        ...

    async def save_orphans(self, first_observed: Mapping[ReservationId, datetime]) -> None:
        """Replaces all entries."""
        ...
