"""Forecasts: when those who wait will probably start, with an interval that is true four times out of five.

The plan's own starts are bounds: they hold if nobody leaves early. People do. So the queue is planned once more as if
everybody left when people typically do, and what comes out is corrected by how such forecasts turned out before.
It decides nothing about who starts: that is the plan's business, and no forecast is ever later than its bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import EstimateOutcome, EstimateRecord, TimeInterval, UsageSample
from gpudev.planning.facts import HeldShare, TypeFacts, reservable_units, split_by_type, to_microseconds
from gpudev.planning.forecast_habits import TypicalUsage, UsageRatios
from gpudev.planning.forecast_record import Calibration, Prediction, TrackRecord
from gpudev.planning.queue.node_timelines import NodeTimeline, Timetable
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.planner import DEFAULT_MARGIN
from gpudev.planning.queue.zone_constraints import ZoneFilter

_MICROSECONDS = 1_000_000
NEWCOMER_FOR = timedelta(minutes=15)
"""How long somebody who waits counts as a newcomer."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What is known of one GPU type: its people's habits, and how its forecasts turned out."""

    usage_ratios: UsageRatios = field(default_factory=UsageRatios)
    newcomers: TrackRecord = field(default_factory=TrackRecord)
    """Of what people were told when they came."""
    waiting: TrackRecord = field(default_factory=TrackRecord)
    """Of what they were told when they had waited for a while: those who are still there are the unlucky ones."""

    def after_release(self, used: timedelta, asked: timedelta) -> "Experience":
        """Somebody left. `asked`: from the beginning to the planned end as it last was, extensions included."""
        return replace(self, usage_ratios=self.usage_ratios.learn(used, asked))

    def after_start(self, forecast: "Forecast", started_at: datetime) -> "Experience":
        """Somebody who had been told this has started."""
        waited = (started_at - forecast.made_at).total_seconds()
        if forecast.is_newcomer:
            return replace(self, newcomers=self.newcomers.learn(forecast.prediction, waited))
        return replace(self, waiting=self.waiting.learn(forecast.prediction, waited))


NO_EXPERIENCE = Experience()


@dataclass(frozen=True, slots=True)
class ForecastModel:
    """Experience made ready to be asked thousands of times."""

    typical: TypicalUsage
    newcomers: Calibration
    waiting: Calibration

    @classmethod
    def from_experience(cls, experience: Experience) -> "ForecastModel":
        return cls(
            experience.usage_ratios.typical(), experience.newcomers.calibration(), experience.waiting.calibration()
        )


def learn_experience(samples: Sequence[UsageSample], outcomes: Sequence[EstimateOutcome]) -> dict[str, Experience]:
    """Everything that is known, by GPU type, from what happened: the oldest first."""
    known: dict[str, Experience] = {}
    for stay in samples:
        known[stay.gpu_type] = known.get(stay.gpu_type, NO_EXPERIENCE).after_release(stay.used, stay.granted)
    for outcome in outcomes:
        if outcome.started_at is not None:
            told = _recorded_forecast(outcome.estimate)
            experience = known.get(outcome.gpu_type, NO_EXPERIENCE)
            known[outcome.gpu_type] = experience.after_start(told, outcome.started_at)
    return known


@dataclass(frozen=True, slots=True)
class Forecast:
    """`earliest` ≤ `expected` ≤ `latest_likely`: it starts between the first and the last of them in four of five
    cases, and as often before `expected` as after."""

    made_at: datetime
    prediction: Prediction
    is_newcomer: bool = True
    """Whether it had only just come when it was told."""

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


def forecast(
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    queue: Sequence[Request],
    now: datetime,
    *,
    began: Mapping[ReservationId, datetime],
    latest: Mapping[ReservationId, datetime | None],
    came: Mapping[ReservationId, datetime],
    experience: Mapping[str, Experience],
    margin: timedelta = DEFAULT_MARGIN,
) -> dict[ReservationId, Forecast]:
    """For everybody in `latest` (the plan's bounds of those who wait) who has one.

    `began`: when the clock of those who hold something began to run; `came`: when those who wait began to. Whoever
    is not in there has only just begun.
    """
    forecasts: dict[ReservationId, Forecast] = {}
    for facts, requests in split_by_type(nodes, allocations, queue, now, margin):
        known = ForecastModel.from_experience(experience.get(facts.gpu_type, NO_EXPERIENCE))
        forecasts |= TypeForecast(facts, requests, began, known).forecast_waiting(latest, came)
    return forecasts


class TypeForecast:
    """One GPU type's queue, planned as if everybody left when people typically do."""

    def __init__(
        self,
        facts: TypeFacts,
        requests: Sequence[Request],
        began: Mapping[ReservationId, datetime],
        model: ForecastModel,
        sizes: Iterable[int] = (),
    ) -> None:
        """`sizes`: units per node that `of_newcomer` may be asked for, beside those in the queue."""
        self._now = facts.now
        self._model = model
        self._usage_by_duration: dict[timedelta, int] = {}  # people ask for round numbers: few are different
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
            told = calibration.predict(start / _MICROSECONDS, max(0.0, (bound - self._now).total_seconds()))
            shape = (request.units_per_node, request.node_count, request.duration)
            told = alike[shape] = _not_before(told, alike.get(shape))
            forecasts[request.reservation_id] = Forecast(self._now, told, newcomer)
        return forecasts

    def forecast_newcomer(self, units: int, node_count: int, duration: timedelta, latest: datetime) -> Forecast | None:
        """What somebody who came now would be told, behind everybody who waits."""
        place = self._timetable.find_slot(units, node_count, self._typical_usage(duration))
        if place is None:
            return None
        bound = max(0.0, (latest - self._now).total_seconds())
        return Forecast(self._now, self._model.newcomers.predict(place.start / _MICROSECONDS, bound))

    def _assign_slot(self, request: Request) -> int | None:
        """Its start in microseconds from now; its place is taken."""
        stay = self._typical_usage(request.duration)
        place = self._zone_filter.find_slot(self._timetable, request, stay)
        if place is None:
            return None
        self._timetable.take(place, request.units_per_node, stay)
        return place.start

    def _typical_usage(self, duration: timedelta) -> int:
        stay = self._usage_by_duration.get(duration)
        if stay is None:
            stay = self._usage_by_duration[duration] = max(
                1, round(self._model.typical.remaining(to_microseconds(duration)))
            )
        return stay


def _recorded_forecast(record: EstimateRecord) -> Forecast:
    """A forecast as it was told, from what was kept of it."""

    def seconds(moment: datetime) -> float:
        return (moment - record.made_at).total_seconds()

    span = record.interval
    told = Prediction(
        record.typical_seconds,
        seconds(record.latest),
        seconds(span.earliest),
        seconds(span.expected),
        seconds(span.latest_likely),
    )
    return Forecast(record.made_at, told, record.is_newcomer)


def _typical_release(
    held: HeldShare, now: datetime, began: Mapping[ReservationId, datetime], typical: TypicalUsage
) -> tuple[int, int]:
    """When it is typically over, and the units it frees then."""
    if held.overdue:
        return held.until, held.units
    elapsed = max(0, to_microseconds(now - began.get(held.reservation_id, now)))
    return max(1, round(typical.remaining(elapsed + held.until, elapsed))), held.units


def _not_before(prediction: Prediction, ahead: Prediction | None) -> Prediction:
    """Whoever asks for the same and stands behind is not told to start before those ahead."""
    if ahead is None:
        return prediction
    return Prediction(
        typical=prediction.typical,
        bound=prediction.bound,
        earliest=min(prediction.bound, max(prediction.earliest, ahead.earliest)),
        expected=min(prediction.bound, max(prediction.expected, ahead.expected)),
        latest_likely=min(prediction.bound, max(prediction.latest_likely, ahead.latest_likely)),
    )
