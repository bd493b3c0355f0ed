"""Forecasts: when queued requests will probably start, with an 80 % interval.

Usage ratios (used time over requested time, per GPU type) are learnt from ended reservations, forgotten slowly, and
replaced by a broad prior while little is known. The queue is planned once more with typical instead of requested
durations, and the result is corrected by how earlier forecasts turned out. Users are not distinguished.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import EstimateOutcome, EstimateRecord, TimeInterval, UsageSample
from gpudev.planning.queue.node_timelines import NodeTimeline, Timetable
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_input import HeldShare, TypeFacts, reservable_units, to_microseconds
from gpudev.planning.queue.zone_constraints import ZoneFilter

_USAGE_BINS = 20
_USAGE_PRIOR = (2.0, 1.6, 1.3, 1.1, 1.0, 0.9, 0.8, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3, 2.3)
"""Prior, with the weight of seventeen samples: many leave at once, most before half-time, some never."""
_MOST_SAMPLES = 1000.0
"""At this many samples all weights are halved, so that old ones are forgotten."""


@dataclass(frozen=True, slots=True)
class UsageRatios:
    counts: tuple[float, ...] = _USAGE_PRIOR
    """Samples by used share of the granted time, in twentieths; the last bin: used to the end."""

    def learn(self, used: timedelta, granted: timedelta) -> "UsageRatios":
        """`granted`: from the start to the last planned end, with extensions."""
        if granted <= timedelta(0):
            return self
        counts = list(self.counts)
        counts[min(_USAGE_BINS, max(0, int(used / granted * _USAGE_BINS)))] += 1.0
        if sum(counts) > _MOST_SAMPLES:
            counts = [count / 2 for count in counts]
        return UsageRatios(tuple(counts))

    def typical(self) -> "TypicalUsage":
        return TypicalUsage(self.counts)


class TypicalUsage:
    """Usage ratios, precomputed for thousands of lookups."""

    __slots__ = ("_all", "_counts", "_left")

    def __init__(self, counts: Sequence[float] = _USAGE_PRIOR) -> None:
        self._counts = counts
        self._left = list(accumulate(counts[:_USAGE_BINS], initial=0.0))
        """Cumulated counts at the end of each twentieth, starting with 0."""
        self._all = sum(counts)

    def remaining(self, granted: float, elapsed: float = 0.0) -> float:
        """Median remaining time after `elapsed`, at most the rest of `granted`. Any unit of time."""
        if granted <= 0 or elapsed >= granted:
            return 0.0
        used_share = max(0.0, elapsed / granted)
        return max(0.0, granted * (self._median_beyond(used_share) - used_share))

    def _median_beyond(self, used_share: float) -> float:
        """The median used share among samples above `used_share`."""
        step = int(used_share * _USAGE_BINS)
        already = self._left[step] + (used_share * _USAGE_BINS - step) * self._counts[step]
        middle = (already + self._all) / 2
        if middle >= self._left[_USAGE_BINS]:
            return 1.0
        step = bisect_right(self._left, middle) - 1
        return (step + (middle - self._left[step]) / self._counts[step]) / _USAGE_BINS


# Calibration: how far earlier forecasts were off.
#
# A forecast starts as the start in a *typical* plan. Its error, as a ratio, is kept for the latest outcomes,
# separately for short and long waits; the next interval lies between observed ratios. Waits in one queue go wrong
# together, so which ratios are the bounds also follows, slowly, how often the interval held.


INTERVAL = 0.8
"""Target coverage of the intervals."""
_TAIL = (1 - INTERVAL) / 2
_BUCKETS = (60.0, 15 * 60.0, 60 * 60.0, 3 * 60 * 60.0)
"""Upper bounds of the buckets: typical waits, in seconds."""
_OUTCOMES_PER_BUCKET = 500
"""Outcomes per bucket."""
_ENOUGH = 60
"""From this many outcomes on, a bucket does without the prior."""
_RATIO_PRIOR = (-1.6, -1.3, -1.1, -0.9, -0.7, -0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4, 0.7, 1.2)
"""Prior: a broad spread of log ratios, slightly on the early side."""
_IMMEDIATE_RATIO_PRIOR = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.1, 2.4)
"""Prior for requests that would start at once in the typical plan: they do wait, so it can only be longer."""
_LEVEL_STEP = 0.003
"""How far one outcome moves the level of a bound."""
_LEAST_SCALE, _SHARE_OF_BOUND = 120.0, 0.05


@dataclass(frozen=True, slots=True)
class Prediction:
    """A forecast in seconds from when it was made. Compared with the actual start later."""

    typical: float
    bound: float
    """The wait until `latest`."""
    earliest: float
    expected: float
    latest_likely: float


@dataclass(frozen=True, slots=True)
class TrackRecord:
    ratios: tuple[tuple[float, ...], ...] = ((),) * (len(_BUCKETS) + 1)
    """By bucket, oldest first: logarithms of actual over typical wait."""
    levels: tuple[float, float, float] = (_TAIL, 0.5, 1 - _TAIL)
    """Quantiles of the observed ratios that become the bounds and the median."""

    def learn(self, prediction: Prediction, waited: float) -> "TrackRecord":
        bucket = bisect_right(_BUCKETS, prediction.typical)
        scale = _scale(prediction.bound)
        ratio = math.log((max(0.0, waited) + scale) / (prediction.typical + scale))
        ratios = list(self.ratios)
        ratios[bucket] = (*ratios[bucket], ratio)[-_OUTCOMES_PER_BUCKET:]
        low, middle, high = self.levels
        low += _LEVEL_STEP * (_TAIL - (waited < prediction.earliest))
        middle += _LEVEL_STEP * (0.5 - (waited < prediction.expected))
        high -= _LEVEL_STEP * (_TAIL - (waited > prediction.latest_likely))
        levels = (_clamp(low, 0.0, 0.3), _clamp(middle, 0.3, 0.7), _clamp(high, 0.7, 1.0))
        return TrackRecord(tuple(ratios), levels)

    def calibration(self) -> "Calibration":
        priors = (_IMMEDIATE_RATIO_PRIOR, *(_RATIO_PRIOR,) * len(_BUCKETS))
        return Calibration(
            tuple(_factors(ratios, prior, self.levels) for ratios, prior in zip(self.ratios, priors, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """A track record, precomputed for thousands of lookups."""

    factors: tuple[tuple[float, float, float], ...]
    """By bucket: factors of a typical wait for the earliest, the expected and the latest likely one."""

    def predict(self, typical: float, bound: float) -> Prediction:
        """Waits in seconds, at most the bound (the guaranteed start)."""
        scale = _scale(bound)
        stretched = typical + scale
        low, middle, high = self.factors[bisect_right(_BUCKETS, typical)]
        return Prediction(
            typical,
            bound,
            earliest=_clamp(stretched * low - scale, 0.0, bound),
            expected=_clamp(stretched * middle - scale, 0.0, bound),
            latest_likely=_clamp(stretched * high - scale, 0.0, bound),
        )


def _scale(bound: float) -> float:
    """Added to both sides of a ratio: next to a bound of hours, typical waits of one and of five minutes are alike."""
    return _LEAST_SCALE + _SHARE_OF_BOUND * bound


def _factors(
    ratios: tuple[float, ...], prior: tuple[float, ...], levels: tuple[float, float, float]
) -> tuple[float, float, float]:
    observed = sorted(ratios if len(ratios) >= _ENOUGH else (*ratios, *prior))
    low, middle, high = levels
    return (
        math.exp(_quantile(observed, low)),
        math.exp(_quantile(observed, middle)),
        math.exp(_quantile(observed, high)),
    )


def _quantile(ordered: Sequence[float], level: float) -> float:
    """The nearest-rank quantile."""
    return ordered[min(len(ordered), max(1, math.ceil(level * len(ordered)))) - 1]


def _clamp(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))


# Forecasts from the typical plan, corrected by the calibration.
#
# The plan's own starts are bounds that hold if nobody leaves early. No forecast is later than its bound. Forecasts
# never influence the plan.


_MICROSECONDS = 1_000_000
NEWCOMER_FOR = timedelta(minutes=15)
"""How long a queued request counts as a newcomer."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What has been learnt for one GPU type: usage ratios, and the errors of its forecasts."""

    usage_ratios: UsageRatios = field(default_factory=UsageRatios)
    newcomers: TrackRecord = field(default_factory=TrackRecord)
    """Of forecasts for newcomers."""
    waiting: TrackRecord = field(default_factory=TrackRecord)
    """Of forecasts made after some waiting: a biased sample, because the lucky ones have started."""

    def after_release(self, used: timedelta, granted: timedelta) -> "Experience":
        """`granted`: from the start to the last planned end, with extensions."""
        return replace(self, usage_ratios=self.usage_ratios.learn(used, granted))

    def after_start(self, forecast: "Forecast", started_at: datetime) -> "Experience":
        """A request with this forecast has started."""
        waited = (started_at - forecast.made_at).total_seconds()
        if forecast.is_newcomer:
            return replace(self, newcomers=self.newcomers.learn(forecast.prediction, waited))
        return replace(self, waiting=self.waiting.learn(forecast.prediction, waited))


NO_EXPERIENCE = Experience()


@dataclass(frozen=True, slots=True)
class ForecastModel:
    """Experience, precomputed for thousands of lookups."""

    typical: TypicalUsage
    newcomers: Calibration
    waiting: Calibration

    @classmethod
    def from_experience(cls, experience: Experience) -> "ForecastModel":
        return cls(
            experience.usage_ratios.typical(), experience.newcomers.calibration(), experience.waiting.calibration()
        )


def learn_experience(samples: Sequence[UsageSample], outcomes: Sequence[EstimateOutcome]) -> dict[str, Experience]:
    """Experience by GPU type. Inputs: oldest first."""
    known: dict[str, Experience] = {}
    for usage in samples:
        known[usage.gpu_type] = known.get(usage.gpu_type, NO_EXPERIENCE).after_release(usage.used, usage.granted)
    for outcome in outcomes:
        if outcome.started_at is not None:
            prediction = _recorded_forecast(outcome.estimate)
            experience = known.get(outcome.gpu_type, NO_EXPERIENCE)
            known[outcome.gpu_type] = experience.after_start(prediction, outcome.started_at)
    return known


@dataclass(frozen=True, slots=True)
class Forecast:
    """`earliest` ≤ `expected` ≤ `latest_likely`: the interval holds in four of five cases; `expected` is the median."""

    made_at: datetime
    prediction: Prediction
    is_newcomer: bool = True
    """Whether the request was a newcomer when the forecast was made."""

    @property
    def earliest(self) -> datetime:
        return self.made_at + timedelta(seconds=self.prediction.earliest)

    @property
    def expected(self) -> datetime:
        return self.made_at + timedelta(seconds=self.prediction.expected)

    @property
    def latest_likely(self) -> datetime:
        return self.made_at + timedelta(seconds=self.prediction.latest_likely)

    @property
    def interval(self) -> TimeInterval:
        return TimeInterval(self.expected, self.earliest, self.latest_likely)


class TypeForecast:
    """One GPU type's queue, planned with typical instead of requested durations."""

    def __init__(
        self,
        facts: TypeFacts,
        requests: Sequence[Request],
        began: Mapping[ReservationId, datetime],
        model: ForecastModel,
        sizes: Iterable[int] = (),
    ) -> None:
        """`sizes`: further units per node for `forecast_newcomer`, beside those in the queue."""
        self._now = facts.now
        self._model = model
        self._usage_by_duration: dict[timedelta, int] = {}  # few different ones: users choose round numbers
        lines = [
            NodeTimeline(
                rank,
                node.units,
                reservable_units(node),
                [_typical_release(held, facts.now, began, model.typical) for held in held_there],
            )
            for rank, (node, held_there) in enumerate(zip(facts.nodes, facts.held, strict=True))
        ]
        self._timetable = Timetable(lines, [*sizes, *(request.units_per_node for request in requests)])
        self._zone_filter = ZoneFilter(facts.nodes)
        self._starts = [(request, self._assign_slot(request)) for request in requests]

    def forecast_waiting(
        self, latest: Mapping[ReservationId, datetime | None], came: Mapping[ReservationId, datetime]
    ) -> dict[ReservationId, Forecast]:
        forecasts: dict[ReservationId, Forecast] = {}
        alike: dict[tuple[int, int, timedelta], Prediction] = {}
        for request, start in self._starts:
            bound = latest.get(request.reservation_id)
            if start is None or bound is None:
                continue
            newcomer = self._now - came.get(request.reservation_id, self._now) < NEWCOMER_FOR
            calibration = self._model.newcomers if newcomer else self._model.waiting
            prediction = calibration.predict(start / _MICROSECONDS, max(0.0, (bound - self._now).total_seconds()))
            shape = (request.units_per_node, request.node_count, request.duration)
            prediction = alike[shape] = _not_before(prediction, alike.get(shape))
            forecasts[request.reservation_id] = Forecast(self._now, prediction, newcomer)
        return forecasts

    def forecast_newcomer(self, units: int, node_count: int, duration: timedelta, latest: datetime) -> Forecast | None:
        """The forecast of a newcomer behind the whole queue."""
        slot = self._timetable.find_slot(units, node_count, self._typical_usage(duration))
        if slot is None:
            return None
        bound = max(0.0, (latest - self._now).total_seconds())
        return Forecast(self._now, self._model.newcomers.predict(slot.start / _MICROSECONDS, bound))

    def _assign_slot(self, request: Request) -> int | None:
        """Takes its slot; returns the start in microseconds from now."""
        usage = self._typical_usage(request.duration)
        slot = self._zone_filter.find_slot(self._timetable, request, usage)
        if slot is None:
            return None
        self._timetable.take(slot, request.units_per_node, usage)
        return slot.start

    def _typical_usage(self, duration: timedelta) -> int:
        usage = self._usage_by_duration.get(duration)
        if usage is None:
            usage = self._usage_by_duration[duration] = max(
                1, round(self._model.typical.remaining(to_microseconds(duration)))
            )
        return usage


def _recorded_forecast(record: EstimateRecord) -> Forecast:
    """The forecast of a record."""

    def seconds(moment: datetime) -> float:
        return (moment - record.made_at).total_seconds()

    span = record.interval
    prediction = Prediction(
        record.typical_seconds,
        seconds(record.latest),
        seconds(span.earliest),
        seconds(span.expected),
        seconds(span.latest_likely),
    )
    return Forecast(record.made_at, prediction, record.is_newcomer)


def _typical_release(
    held: HeldShare, now: datetime, began: Mapping[ReservationId, datetime], typical: TypicalUsage
) -> tuple[int, int]:
    """Its typical end, and the units that become free then."""
    if held.overdue:
        return held.until, held.units
    elapsed = max(0, to_microseconds(now - began.get(held.reservation_id, now)))
    return max(1, round(typical.remaining(elapsed + held.until, elapsed))), held.units


def _not_before(prediction: Prediction, ahead: Prediction | None) -> Prediction:
    """A request of the same shape is never expected before those ahead of it."""
    if ahead is None:
        return prediction
    return Prediction(
        typical=prediction.typical,
        bound=prediction.bound,
        earliest=min(prediction.bound, max(prediction.earliest, ahead.earliest)),
        expected=min(prediction.bound, max(prediction.expected, ahead.expected)),
        latest_likely=min(prediction.bound, max(prediction.latest_likely, ahead.latest_likely)),
    )
