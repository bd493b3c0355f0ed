"""The queue: estimates, start quotes, the published plan, wake-up messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from gpudev.domain.cluster import ZoneConstraint
from gpudev.domain.ids import ReservationId

CONFIDENCE = 0.8
"""The share of starts that should fall between `earliest` and `latest_likely`."""


class DelayCause(StrEnum):
    """Why a start is later than the previous estimate."""

    NODE_LOST = "a node was lost"
    OPERATOR = "an operator's act"
    SLOW_START = "a slow start"
    SLOW_RELEASE = "a slow release"
    FOREIGN_WORK = "foreign work"
    FAIR_SHARE = "fair share"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """Expected start (the median), with an interval that holds in four of five cases."""

    expected: datetime
    earliest: datetime
    latest_likely: datetime


@dataclass(frozen=True, slots=True)
class Estimate:
    """A request's queue position and starts."""

    position: int
    latest: datetime | None
    """The guaranteed start: it holds even if nobody leaves early, and includes preparation and teardown. None: no
    guarantee is possible (its nodes are missing or in unmanaged use)."""
    interval: TimeInterval | None
    reason: str
    nodes: tuple[str, ...] = ()
    """Where it is planned to start."""


@dataclass(frozen=True, slots=True)
class StartQuote:
    """The start that a newcomer would get now, for one shape of request."""

    units: int
    node_count: int
    duration: timedelta | None
    """As the planner counts it, with preparation and teardown. None: any duration."""
    latest: datetime
    interval: TimeInterval | None


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """The processor's latest plan of one GPU type."""

    gpu_type: str
    made_at: datetime
    planned_seq: int
    """The last arrival that the plan includes."""
    estimates: Mapping[ReservationId, Estimate]
    quotes: tuple[StartQuote, ...] = ()
    usage_ratios: tuple[float, ...] | None = None
    """Learnt usage ratios, for forecasts made by the API (`planning.queue.forecasting`)."""
    correction_factors: tuple[tuple[float, float, float], ...] | None = None
    """Learnt corrections of newcomers' forecasts (`planning.queue.forecasting`)."""
    zones: Mapping[str, str] = field(default_factory=dict)
    """By node, where it has one."""
    zone_constraints: Mapping[ReservationId, ZoneConstraint] = field(default_factory=dict)
    """Of queued requests whose disk has a volume."""


@dataclass(frozen=True, slots=True)
class EstimateRecord:
    """A published estimate, kept for comparison with the actual start."""

    reservation_id: ReservationId
    made_at: datetime
    position: int
    latest: datetime
    interval: TimeInterval
    typical_seconds: float
    """The uncorrected forecast, from which corrections are learnt."""
    is_newcomer: bool
    delay_cause: DelayCause | None = None
    """Why it is later than the previous estimate. None: it is not."""


@dataclass(frozen=True, slots=True)
class EstimateOutcome:
    """An estimate and the actual start."""

    gpu_type: str
    estimate: EstimateRecord
    started_at: datetime | None
    """None: it still waits."""


@dataclass(frozen=True, slots=True)
class UsageSample:
    """One ended reservation: time used, and time granted (with extensions)."""

    gpu_type: str
    used: timedelta
    granted: timedelta


# Wake-up messages: an id to examine, and the cause for the log. The row is authoritative.


RESERVATION_QUEUE = "gpu_reservations"
DISK_QUEUE = "disk_operations"
MESSAGE_QUEUES = (RESERVATION_QUEUE, DISK_QUEUE)
MESSAGE_LEASE = timedelta(seconds=30)
"""An unacknowledged message is read again after this: longer than any cycle, soon after a crash."""
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
