"""The plan and the forecasts of several GPU types at once, for tests and benchmarks: the processor plans each type by
itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.forecasting import NO_EXPERIENCE, Experience, Forecast, ForecastModel, TypeForecast
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.planner import DEFAULT_MARGIN, plan_type
from gpudev.planning.queue.queue_input import split_by_type


@dataclass(frozen=True, slots=True)
class Plan:
    starts: tuple[Start, ...]
    waits: tuple[Queued, ...]

    def estimates(self) -> Mapping[ReservationId, Estimate]:
        return {wait.reservation_id: wait.estimate for wait in self.waits}


def plan_queue(
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    queue: Sequence[Request],
    now: datetime,
    margin: timedelta = DEFAULT_MARGIN,
    *,
    promises: Mapping[ReservationId, Estimate] | None = None,
) -> Plan:
    """`margin`: how long what should have ended by now may still take to be freed. `promises`: what those who wait
    were told last."""
    starts: list[Start] = []
    waits: list[Queued] = []
    for facts, requests in split_by_type(nodes, allocations, queue, now, margin):
        for decision in plan_type(facts, requests, promises):
            if isinstance(decision, Start):
                starts.append(decision)
            else:
                waits.append(decision)
    return Plan(tuple(starts), tuple(waits))


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


def wait_of(live: IncrementalPlanner, reservation_id: ReservationId) -> Queued | None:
    """What the incremental planner says of one that waits."""
    request = live._queue.find_request(reservation_id)
    return None if request is None else live._make_queued(request, live._planned_starts.find_slot(reservation_id))


def end_reservation(live: IncrementalPlanner, reservation_id: ReservationId, now: datetime) -> tuple[Start, ...]:
    """Somebody's GPUs are free, or somebody who waited has given up. Those who start now."""
    live._advance(now)
    live._remove(reservation_id)
    return live.collect_starts(now)
