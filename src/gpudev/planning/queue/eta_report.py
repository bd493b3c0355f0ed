"""Quality of the estimates: first estimates compared with actual starts.

A broken guarantee is a start after any `latest` that was ever promised, or a wait beyond it. Each has a cause.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import DelayCause, EstimateOutcome

_WRITE_DELAY = timedelta(seconds=1)
"""A start is recorded a moment after it was decided."""


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """Absolute errors in minutes. None: no starts yet."""

    median: float | None
    p90: float | None


@dataclass(frozen=True, slots=True)
class BrokenGuarantee:
    reservation_id: ReservationId
    gpu_type: str
    latest: datetime
    started_at: datetime | None
    cause: DelayCause


@dataclass(frozen=True, slots=True)
class EtaReport:
    gpu_type: str | None
    """None: all types."""
    started: int
    """Requests that waited and have started."""
    expected: EstimateErrors
    latest: EstimateErrors
    in_interval: float | None
    """The share that started within the first estimated interval."""
    breaches: tuple[BrokenGuarantee, ...]

    def breaches_by_cause(self) -> dict[str, int]:
        counted = Counter(breach.cause for breach in self.breaches)
        return {cause.value: counted[cause] for cause in DelayCause if counted[cause]}


def make_eta_reports(outcomes: Sequence[EstimateOutcome], now: datetime) -> list[EtaReport]:
    """All types together, then each one."""
    types = sorted({outcome.gpu_type for outcome in outcomes})
    parts = [_make_report(None, outcomes, now)]
    for gpu_type in types:
        parts.append(_make_report(gpu_type, [each for each in outcomes if each.gpu_type == gpu_type], now))
    return parts


def _make_report(gpu_type: str | None, outcomes: Sequence[EstimateOutcome], now: datetime) -> EtaReport:
    by_reservation = _by_reservation(outcomes)
    first = [own[0] for own in by_reservation.values() if own[0].started_at is not None]
    return EtaReport(
        gpu_type,
        len(first),
        _errors(_minutes(each.started_at, each.estimate.interval.expected) for each in first),
        _errors(_minutes(each.started_at, each.estimate.latest) for each in first),
        sum(_is_in_interval(each) for each in first) / len(first) if first else None,
        tuple(breach for own in by_reservation.values() if (breach := _find_broken_guarantee(own, now)) is not None),
    )


def _by_reservation(outcomes: Iterable[EstimateOutcome]) -> Mapping[ReservationId, list[EstimateOutcome]]:
    by_reservation: dict[ReservationId, list[EstimateOutcome]] = {}
    for outcome in outcomes:
        by_reservation.setdefault(outcome.estimate.reservation_id, []).append(outcome)
    return by_reservation


def _find_broken_guarantee(own: Sequence[EstimateOutcome], now: datetime) -> BrokenGuarantee | None:
    """`own`: all estimates of one reservation, in order."""
    started_at = own[0].started_at
    late = [each for each in own if (started_at or now) > each.estimate.latest + _WRITE_DELAY]
    if not late:
        return None
    earliest = min(late, key=lambda each: each.estimate.latest)
    causes = [each.estimate.delay_cause for each in own if each.estimate.delay_cause is not None]
    return BrokenGuarantee(
        earliest.estimate.reservation_id,
        earliest.gpu_type,
        earliest.estimate.latest,
        started_at,
        causes[0] if causes else DelayCause.UNEXPLAINED,
    )


def _is_in_interval(outcome: EstimateOutcome) -> bool:
    span = outcome.estimate.interval
    return outcome.started_at is not None and span.earliest <= outcome.started_at <= span.latest_likely


def _minutes(actual: datetime | None, estimated: datetime) -> float:
    return abs((actual - estimated).total_seconds()) / 60 if actual is not None else math.nan


def _errors(minutes: Iterable[float]) -> EstimateErrors:
    ordered = sorted(minutes)
    if not ordered:
        return EstimateErrors(None, None)
    return EstimateErrors(_quantile(ordered, 0.5), _quantile(ordered, 0.9))


def _quantile(ordered: Sequence[float], level: float) -> float:
    """The nearest-rank quantile."""
    return round(ordered[max(0, math.ceil(level * len(ordered)) - 1)], 2)
