"""Counters of reservation and disk events, fed from the history in the database.

The source is the database, so it does not matter which process wrote the event: the API, a processor or a short
command.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.reservations.lifecycle import Status
from gpudev.metrics import instruments

RELEASED = "released"
SUBMITTED = "submitted"
_COUNTED_KINDS = frozenset({*(status.value for status in Status), RELEASED, SUBMITTED})
_WRITE_DELAY = timedelta(seconds=1)
"""A start is recorded a moment after it is decided."""


@dataclass(frozen=True, slots=True)
class ReservationTransition:
    kind: str
    gpu_type: str
    at: datetime
    created_at: datetime
    preparing_at: datetime | None
    first_expected: datetime | None = None
    """The expected start at submission. None: it did not wait."""
    earliest_promise: datetime | None = None
    """The earliest guaranteed start it was ever given. None: it was given none."""


@dataclass(frozen=True, slots=True)
class DiskOperationEnded:
    kind: str
    result: str
    took: timedelta


@dataclass(frozen=True, slots=True)
class DiskCorrection:
    kind: str


CountedEvent = ReservationTransition | DiskOperationEnded | DiskCorrection


def count_events(events: Iterable[CountedEvent]) -> None:
    for event in events:
        match event:
            case ReservationTransition():
                _count_transition(event)
            case DiskOperationEnded():
                instruments.disk_operations.labels(event.kind, event.result).inc()
                instruments.disk_operation_seconds.labels(event.kind).observe(event.took.total_seconds())
            case DiskCorrection():
                instruments.disk_corrections.labels(event.kind).inc()


def _count_transition(step: ReservationTransition) -> None:
    if step.kind not in _COUNTED_KINDS:
        return
    instruments.transitions.labels(step.gpu_type, step.kind).inc()
    if step.kind == Status.PREPARING:
        instruments.wait_seconds.labels(step.gpu_type).observe((step.at - step.created_at).total_seconds())
        _observe_estimate(step)
    elif step.kind == Status.ACTIVE and step.preparing_at is not None:
        instruments.startup_seconds.labels(step.gpu_type).observe((step.at - step.preparing_at).total_seconds())


def _observe_estimate(step: ReservationTransition) -> None:
    if step.first_expected is not None:
        error = abs((step.at - step.first_expected).total_seconds())
        instruments.expected_start_error_seconds.labels(step.gpu_type).observe(error)
    if step.earliest_promise is not None and step.at > step.earliest_promise + _WRITE_DELAY:
        instruments.guarantees_broken.labels(step.gpu_type).inc()
