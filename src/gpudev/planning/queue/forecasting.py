"""Forecasts: when those who wait will probably start, with an interval that is true four times out of five.

The plan's own starts are bounds: they hold if nobody leaves early. People do. So the queue is planned once more as if
everybody left when people typically do, and what comes out is corrected by how such forecasts turned out before.
It decides nothing about who starts: that is the plan's business, and no forecast is ever later than its bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import Holding, Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import EstimateRecord, Outcome, Span, Stay
from gpudev.planning.facts import Held, TypeFacts, by_type, lasting_units, microseconds
from gpudev.planning.forecast_habits import Habits, TypicalStay
from gpudev.planning.forecast_record import Calibration, Told, TrackRecord
from gpudev.planning.queue.node_timelines import Line, Timetable
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.planner import DEFAULT_MARGIN
from gpudev.planning.queue.zone_constraints import Grounds

_MICROSECONDS = 1_000_000
NEW_FOR = timedelta(minutes=15)
"""How long somebody who waits counts as a newcomer."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What is known of one GPU type: its people's habits, and how its forecasts turned out."""

    habits: Habits = field(default_factory=Habits)
    newcomers: TrackRecord = field(default_factory=TrackRecord)
    """Of what people were told when they came."""
    waiting: TrackRecord = field(default_factory=TrackRecord)
    """Of what they were told when they had waited for a while: those who are still there are the unlucky ones."""

    def after_stay(self, used: timedelta, asked: timedelta) -> "Experience":
        """Somebody left. `asked`: from the beginning to the planned end as it last was, extensions included."""
        return replace(self, habits=self.habits.learn(used, asked))

    def after_start(self, forecast: "Forecast", started_at: datetime) -> "Experience":
        """Somebody who had been told this has started."""
        waited = (started_at - forecast.made_at).total_seconds()
        if forecast.newcomer:
            return replace(self, newcomers=self.newcomers.learn(forecast.told, waited))
        return replace(self, waiting=self.waiting.learn(forecast.told, waited))


NOTHING_KNOWN = Experience()


@dataclass(frozen=True, slots=True)
class Known:
    """Experience made ready to be asked thousands of times."""

    typical: TypicalStay
    newcomers: Calibration
    waiting: Calibration

    @classmethod
    def of(cls, experience: Experience) -> "Known":
        return cls(experience.habits.typical(), experience.newcomers.calibration(), experience.waiting.calibration())


def learn(stays: Sequence[Stay], outcomes: Sequence[Outcome]) -> dict[str, Experience]:
    """Everything that is known, by GPU type, from what happened: the oldest first."""
    known: dict[str, Experience] = {}
    for stay in stays:
        known[stay.gpu_type] = known.get(stay.gpu_type, NOTHING_KNOWN).after_stay(stay.used, stay.could)
    for outcome in outcomes:
        if outcome.started_at is not None:
            told = _as_forecast(outcome.told)
            experience = known.get(outcome.gpu_type, NOTHING_KNOWN)
            known[outcome.gpu_type] = experience.after_start(told, outcome.started_at)
    return known


@dataclass(frozen=True, slots=True)
class Forecast:
    """`earliest` ≤ `expected` ≤ `latest_likely`: it starts between the first and the last of them in four of five
    cases, and as often before `expected` as after."""

    made_at: datetime
    told: Told
    newcomer: bool = True
    """Whether it had only just come when it was told."""

    @property
    def earliest(self) -> datetime:
        return self.made_at + timedelta(seconds=self.told.earliest)

    @property
    def expected(self) -> datetime:
        return self.made_at + timedelta(seconds=self.told.expected)

    @property
    def latest_likely(self) -> datetime:
        return self.made_at + timedelta(seconds=self.told.latest_likely)

    @property
    def span(self) -> Span:
        return Span(self.expected, self.earliest, self.latest_likely)


def forecast(
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
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
    for facts, requests in by_type(nodes, holdings, queue, now, margin):
        known = Known.of(experience.get(facts.gpu_type, NOTHING_KNOWN))
        forecasts |= TypeForecast(facts, requests, began, known).of_waiting(latest, came)
    return forecasts


class TypeForecast:
    """One GPU type's queue, planned as if everybody left when people typically do."""

    def __init__(
        self,
        facts: TypeFacts,
        requests: Sequence[Request],
        began: Mapping[ReservationId, datetime],
        known: Known,
        sizes: Iterable[int] = (),
    ) -> None:
        """`sizes`: units per node that `of_newcomer` may be asked for, beside those in the queue."""
        self._now = facts.now
        self._known = known
        self._stays: dict[timedelta, int] = {}  # people ask for round numbers: few are different
        lines = [
            Line(
                rank,
                node.units,
                lasting_units(node),
                [_leaving(held, facts.now, began, known.typical) for held in held_there],
            )
            for rank, (node, held_there) in enumerate(zip(facts.nodes, facts.held, strict=True))
        ]
        self._timetable = Timetable(lines, [*sizes, *(request.units_per_node for request in requests)])
        self._grounds = Grounds(facts.nodes)
        self._starts = [(request, self._place(request)) for request in requests]

    def of_waiting(
        self, latest: Mapping[ReservationId, datetime | None], came: Mapping[ReservationId, datetime]
    ) -> dict[ReservationId, Forecast]:
        forecasts: dict[ReservationId, Forecast] = {}
        alike: dict[tuple[int, int, timedelta], Told] = {}
        for request, start in self._starts:
            bound = latest.get(request.reservation_id)
            if start is None or bound is None:
                continue
            newcomer = self._now - came.get(request.reservation_id, self._now) < NEW_FOR
            calibration = self._known.newcomers if newcomer else self._known.waiting
            told = calibration.tell(start / _MICROSECONDS, max(0.0, (bound - self._now).total_seconds()))
            shape = (request.units_per_node, request.node_count, request.duration)
            told = alike[shape] = _not_before(told, alike.get(shape))
            forecasts[request.reservation_id] = Forecast(self._now, told, newcomer)
        return forecasts

    def of_newcomer(self, units: int, node_count: int, duration: timedelta, latest: datetime) -> Forecast | None:
        """What somebody who came now would be told, behind everybody who waits."""
        place = self._timetable.find(units, node_count, self._stay(duration))
        if place is None:
            return None
        bound = max(0.0, (latest - self._now).total_seconds())
        return Forecast(self._now, self._known.newcomers.tell(place.start / _MICROSECONDS, bound))

    def _place(self, request: Request) -> int | None:
        """Its start in microseconds from now; its place is taken."""
        stay = self._stay(request.duration)
        place = self._grounds.find(self._timetable, request, stay)
        if place is None:
            return None
        self._timetable.take(place, request.units_per_node, stay)
        return place.start

    def _stay(self, duration: timedelta) -> int:
        stay = self._stays.get(duration)
        if stay is None:
            stay = self._stays[duration] = max(1, round(self._known.typical.rest(microseconds(duration))))
        return stay


def _as_forecast(record: EstimateRecord) -> Forecast:
    """A forecast as it was told, from what was kept of it."""

    def seconds(moment: datetime) -> float:
        return (moment - record.made_at).total_seconds()

    span = record.span
    told = Told(
        record.typical_seconds,
        seconds(record.latest),
        seconds(span.earliest),
        seconds(span.expected),
        seconds(span.latest_likely),
    )
    return Forecast(record.made_at, told, record.is_newcomer)


def _leaving(
    held: Held, now: datetime, began: Mapping[ReservationId, datetime], typical: TypicalStay
) -> tuple[int, int]:
    """When it is typically over, and the units it frees then."""
    if held.overdue:
        return held.until, held.units
    elapsed = max(0, microseconds(now - began.get(held.reservation_id, now)))
    return max(1, round(typical.rest(elapsed + held.until, elapsed))), held.units


def _not_before(told: Told, ahead: Told | None) -> Told:
    """Whoever asks for the same and stands behind is not told to start before those ahead."""
    if ahead is None:
        return told
    return Told(
        typical=told.typical,
        bound=told.bound,
        earliest=min(told.bound, max(told.earliest, ahead.earliest)),
        expected=min(told.bound, max(told.expected, ahead.expected)),
        latest_likely=min(told.bound, max(told.latest_likely, ahead.latest_likely)),
    )
