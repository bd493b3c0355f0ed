"""What has happened since the last time somebody asked, as the database tells it, and how that is counted.

So it does not matter who did it: the API, a processor, or a command that ran for a moment.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.reservations.lifecycle import Status
from gpudev.metrics import instruments

RELEASED = "released"
SUBMITTED = "submitted"
_COUNTED = frozenset({*(status.value for status in Status), RELEASED, SUBMITTED})
_A_BREATH = timedelta(seconds=1)
"""A start is written down a moment after it was decided."""


@dataclass(frozen=True, slots=True)
class ReservationStep:
    kind: str
    gpu_type: str
    at: datetime
    created_at: datetime
    preparing_at: datetime | None
    first_expected: datetime | None = None
    """The start that was expected when it came. None: it did not have to wait."""
    earliest_promise: datetime | None = None
    """The earliest of all latest starts it was ever told."""


@dataclass(frozen=True, slots=True)
class DiskOperationEnded:
    kind: str
    result: str
    took: timedelta


@dataclass(frozen=True, slots=True)
class DiskCorrected:
    kind: str


Happened = ReservationStep | DiskOperationEnded | DiskCorrected


def count(happened: Iterable[Happened]) -> None:
    for one in happened:
        match one:
            case ReservationStep():
                _count_step(one)
            case DiskOperationEnded():
                instruments.disk_operations.labels(one.kind, one.result).inc()
                instruments.disk_operation_seconds.labels(one.kind).observe(one.took.total_seconds())
            case DiskCorrected():
                instruments.disk_corrections.labels(one.kind).inc()


def _count_step(step: ReservationStep) -> None:
    if step.kind not in _COUNTED:
        return
    instruments.transitions.labels(step.gpu_type, step.kind).inc()
    if step.kind == Status.PREPARING:
        instruments.wait_seconds.labels(step.gpu_type).observe((step.at - step.created_at).total_seconds())
        _judge(step)
    elif step.kind == Status.ACTIVE and step.preparing_at is not None:
        instruments.startup_seconds.labels(step.gpu_type).observe((step.at - step.preparing_at).total_seconds())


def _judge(step: ReservationStep) -> None:
    if step.first_expected is not None:
        error = abs((step.at - step.first_expected).total_seconds())
        instruments.eta_error_seconds.labels(step.gpu_type).observe(error)
    if step.earliest_promise is not None and step.at > step.earliest_promise + _A_BREATH:
        instruments.promises_broken.labels(step.gpu_type).inc()
