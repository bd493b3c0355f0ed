"""How good the estimates were: what people were told when they came, beside when they started.

A breach is a start after any `latest` that was ever told, or a wait that goes on beyond it; each has its cause.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import LateBecause, Outcome

_A_BREATH = timedelta(seconds=1)
"""A start is written down a moment after it was decided."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Of absolute errors, in minutes. None: nobody has started."""

    median: float | None
    p90: float | None


@dataclass(frozen=True, slots=True)
class Breach:
    reservation_id: ReservationId
    gpu_type: str
    latest: datetime
    started_at: datetime | None
    cause: LateBecause


@dataclass(frozen=True, slots=True)
class EtaReport:
    gpu_type: str | None
    """None: all of them."""
    started: int
    """How many had to wait and have started."""
    expected: Errors
    latest: Errors
    in_interval: float | None
    """Which share of them started in the interval they were told."""
    breaches: tuple[Breach, ...]

    def breaches_by_cause(self) -> dict[str, int]:
        counted = Counter(breach.cause for breach in self.breaches)
        return {cause.value: counted[cause] for cause in LateBecause if counted[cause]}


def report(outcomes: Sequence[Outcome], now: datetime) -> list[EtaReport]:
    """Over all types, then each by itself."""
    types = sorted({outcome.gpu_type for outcome in outcomes})
    parts = [_report(None, outcomes, now)]
    for gpu_type in types:
        parts.append(_report(gpu_type, [each for each in outcomes if each.gpu_type == gpu_type], now))
    return parts


def _report(gpu_type: str | None, outcomes: Sequence[Outcome], now: datetime) -> EtaReport:
    told = _by_reservation(outcomes)
    first = [own[0] for own in told.values() if own[0].started_at is not None]
    return EtaReport(
        gpu_type,
        len(first),
        _errors(_minutes(each.started_at, each.told.span.expected) for each in first),
        _errors(_minutes(each.started_at, each.told.latest) for each in first),
        sum(_is_true(each) for each in first) / len(first) if first else None,
        tuple(breach for own in told.values() if (breach := _breach(own, now)) is not None),
    )


def _by_reservation(outcomes: Iterable[Outcome]) -> Mapping[ReservationId, list[Outcome]]:
    told: dict[ReservationId, list[Outcome]] = {}
    for outcome in outcomes:
        told.setdefault(outcome.told.reservation_id, []).append(outcome)
    return told


def _breach(own: Sequence[Outcome], now: datetime) -> Breach | None:
    """`own`: everything one reservation was told, in order."""
    started_at = own[0].started_at
    late = [each for each in own if (started_at or now) > each.told.latest + _A_BREATH]
    if not late:
        return None
    earliest = min(late, key=lambda each: each.told.latest)
    causes = [each.told.worse_because for each in own if each.told.worse_because is not None]
    return Breach(
        earliest.told.reservation_id,
        earliest.gpu_type,
        earliest.told.latest,
        started_at,
        causes[0] if causes else LateBecause.UNEXPLAINED,
    )


def _is_true(outcome: Outcome) -> bool:
    span = outcome.told.span
    return outcome.started_at is not None and span.earliest <= outcome.started_at <= span.latest_likely


def _minutes(happened: datetime | None, told: datetime) -> float:
    return abs((happened - told).total_seconds()) / 60 if happened is not None else math.nan


def _errors(minutes: Iterable[float]) -> Errors:
    ordered = sorted(minutes)
    if not ordered:
        return Errors(None, None)
    return Errors(_quantile(ordered, 0.5), _quantile(ordered, 0.9))


def _quantile(ordered: Sequence[float], level: float) -> float:
    """The nearest-rank quantile."""
    return round(ordered[max(0, math.ceil(level * len(ordered)) - 1)], 2)
