"""The queue: estimates, start quotes, the published plan, wake-up messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from gpudev.domain.cluster import ZoneConstraint
from gpudev.domain.ids import ReservationId

CONFIDENCE = 0.8
"""How often a start is to lie between `earliest` and `latest_likely`."""


class DelayCause(StrEnum):
    """Why somebody starts later than they were told."""

    NODE_LOST = "a node was lost"
    OPERATOR = "an operator's act"
    SLOW_START = "a slow start"
    SLOW_RELEASE = "a slow release"
    FOREIGN_WORK = "foreign work"
    FAIR_SHARE = "fair share"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """When a start is expected: between the outer two in four of five cases, as often before the middle as after."""

    expected: datetime
    earliest: datetime
    latest_likely: datetime


@dataclass(frozen=True, slots=True)
class Estimate:
    """Where a request stands, and when it starts."""

    position: int
    latest: datetime | None
    """The promise: it starts by then even if nobody leaves early. Preparing and clearing away are in it. None:
    nothing can be promised (its nodes are not there, or foreign work holds them)."""
    interval: TimeInterval | None
    reason: str
    nodes: tuple[str, ...] = ()
    """Where it is planned to start."""


@dataclass(frozen=True, slots=True)
class StartQuote:
    """What somebody who came now would be told: the start for one shape of request."""

    units: int
    node_count: int
    duration: timedelta | None
    """As the planner counts it, preparing and clearing away included. None: however long."""
    latest: datetime
    interval: TimeInterval | None


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """One GPU type's plan as the processor last made it."""

    gpu_type: str
    made_at: datetime
    planned_seq: int
    """Whoever came after this one was not yet looked at."""
    estimates: Mapping[ReservationId, Estimate]
    quotes: tuple[StartQuote, ...] = ()
    usage_ratios: tuple[float, ...] | None = None
    """How people leave, as `planning.queue.forecasting` counts it: for forecasts that are made elsewhere."""
    correction_factors: tuple[tuple[float, float, float], ...] | None = None
    """How forecasts for newcomers are corrected, as `planning.queue.forecasting` has learnt it."""
    zones: Mapping[str, str] = field(default_factory=dict)
    """Of the nodes that are in one."""
    zone_constraints: Mapping[ReservationId, ZoneConstraint] = field(default_factory=dict)
    """Of those who wait and have a disk somewhere."""


@dataclass(frozen=True, slots=True)
class EstimateRecord:
    """An estimate that was told, kept to be compared with what happened."""

    reservation_id: ReservationId
    made_at: datetime
    position: int
    latest: datetime
    interval: TimeInterval
    typical_seconds: float
    """The forecast before experience corrected it; what is learnt from."""
    is_newcomer: bool
    delay_cause: DelayCause | None = None
    """Why it is later than what was told before; None: it is not."""


@dataclass(frozen=True, slots=True)
class EstimateOutcome:
    """What was told, beside what happened."""

    gpu_type: str
    estimate: EstimateRecord
    started_at: datetime | None
    """None: it waits still."""


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Somebody who left: how long they stayed of how long they could have (extensions included)."""

    gpu_type: str
    used: timedelta
    granted: timedelta


# Wake-up messages: an id to examine, and the cause for the log. The row is the truth.


RESERVATION_QUEUE = "gpu_reservations"
DISK_QUEUE = "disk_operations"
MESSAGE_QUEUES = (RESERVATION_QUEUE, DISK_QUEUE)
MESSAGE_LEASE = timedelta(seconds=30)
"""A message that was read and not acknowledged is read again after this: longer than any cycle, soon after a crash."""
MAX_MESSAGE_FAILURES = 3
PLANNING_LEASE = "planning"


def dead_letter_queue(queue: str) -> str:
    return f"{queue}_dlq"


class MessageCause(StrEnum):
    SUBMITTED = "submitted"
    CANCELLED = "cancelled"
    EXTENDED = "extended"
    RETRIED = "retried"
    PRIORITISED = "prioritised"
    RESENT = "resent"
