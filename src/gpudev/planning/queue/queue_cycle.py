"""One planner cycle of one GPU type's queue: plan, forecasts, and what is written and published."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, QueuePlan
from gpudev.planning.decisions import Decisions
from gpudev.planning.queue.estimate_updates import EstimateUpdater, QueueMemory
from gpudev.planning.queue.forecasting import NO_EXPERIENCE, Experience, Forecast, ForecastModel, TypeForecast
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.plan import Queued, Start
from gpudev.planning.queue.planner import plan_type
from gpudev.planning.queue.queue_input import QueueInput
from gpudev.planning.queue.start_quotes import quote_starts, request_sizes

_MANY_WAITING, _MANY_NODES = 200, 50


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A plan to publish. Building it is expensive, so it is built only when it is published."""

    gpu_type: str
    made_at: datetime
    is_expensive: bool
    """Building it may take long, so it should not run in the event loop."""
    mark: object
    """Drafts with equal marks have equal content (apart from the drift of expected starts)."""
    make: Callable[[], QueuePlan]


@dataclass(frozen=True, slots=True)
class QueueCycleResult:
    decisions: Decisions
    draft: PlanDraft | None
    """None: the published plan is close enough."""
    memory: QueueMemory


def decide_queue(
    queue_input: QueueInput, memory: QueueMemory | None = None, experience: Experience = NO_EXPERIENCE
) -> QueueCycleResult:
    """A full plan: for queues of usual length."""
    memory = (memory or QueueMemory()).only_waiting(queue_input.waiting)
    bound = None if queue_input.is_fair_share else memory.promises
    results = list(plan_type(queue_input.facts(), queue_input.requests, bound)) if queue_input.requests else []
    return update_all_estimates(queue_input, results, memory, experience)[0]


def update_all_estimates(
    queue_input: QueueInput, results: Sequence[Start | Queued], memory: QueueMemory, experience: Experience
) -> tuple[QueueCycleResult, "LazyForecast"]:
    """`results`: the planner's results for all requests, in queue order."""
    forecasting = LazyForecast(queue_input, experience)
    waits = [each for each in results if isinstance(each, Queued)]
    forecasts: Mapping[ReservationId, Forecast] = {}
    if waits:
        submitted = {reservation_id: row.created_at for reservation_id, row in queue_input.waiting.items()}
        forecasts = forecasting.get_forecast().forecast_waiting(
            {wait.reservation_id: wait.estimate.latest for wait in waits}, submitted
        )
    updater = EstimateUpdater(queue_input, memory)
    estimates: dict[ReservationId, Estimate] = {}
    for each in results:
        if isinstance(each, Start):
            updater.add_start(each)
        else:
            estimates[each.reservation_id] = updater.add_queued(each, forecasts.get(each.reservation_id))
    draft = _make_draft(queue_input, results, estimates, forecasting)
    return QueueCycleResult(updater.decisions, draft, updater.memory), forecasting


class LazyForecast:
    """A forecast that is computed on first use."""

    def __init__(self, queue_input: QueueInput, experience: Experience) -> None:
        self._queue_input = queue_input
        self.experience = experience
        self.model = ForecastModel.from_experience(experience)
        self._made: TypeForecast | None = None

    def get_forecast(self) -> TypeForecast:
        if self._made is None:
            facts = self._queue_input.facts()
            began = self._queue_input.launch_times()
            self._made = TypeForecast(facts, self._queue_input.requests, began, self.model, request_sizes(facts))
        return self._made


def _make_draft(
    queue_input: QueueInput,
    results: Sequence[Start | Queued],
    estimates: Mapping[ReservationId, Estimate],
    forecasting: LazyForecast,
) -> PlanDraft:
    planned_seq = max((row.seq for row in queue_input.waiting.values()), default=0)

    def make() -> QueuePlan:
        plan = {each.reservation_id: each for each in results}
        around = queue_input.timing.reservation_overhead
        return QueuePlan(
            queue_input.gpu_type,
            queue_input.now,
            planned_seq,
            estimates,
            tuple(quote_starts(queue_input.facts(), plan, queue_input.requests, forecasting.get_forecast(), around)),
            forecasting.experience.usage_ratios.counts,
            forecasting.model.newcomers.factors,
            {node.name: node.zone for node in queue_input.nodes if node.zone is not None},
            {
                request.reservation_id: request.zone_constraint
                for request in queue_input.requests
                if request.zone_constraint is not None
            },
        )

    mark = (
        planned_seq,
        tuple(
            (reservation_id, estimate.position, estimate.latest, estimate.reason)
            for reservation_id, estimate in estimates.items()
        ),
        tuple((allocation.reservation_id, allocation.until) for allocation in queue_input.allocations),
        tuple(queue_input.nodes),
    )
    is_expensive = len(estimates) > _MANY_WAITING or len(queue_input.nodes) > _MANY_NODES
    return PlanDraft(queue_input.gpu_type, queue_input.now, is_expensive, mark, make)


# Long queues: events are answered by the incremental planner; the full plan is recomputed only as often as it takes a
# small share of the time.


LONG_QUEUE = 500
"""A queue is long from this length on. A full cycle of it takes tens of milliseconds."""
_SHORTEST_PAUSE = timedelta(seconds=5)
_SHARE_OF_TIME = 20
"""Updating all estimates takes at most a twentieth of the time."""


class LongQueue:
    def __init__(self, cost: Callable[[], float] = time.perf_counter) -> None:
        """`cost`: a clock that measures full cycles, in seconds."""
        self._cost = cost
        self._planner: IncrementalPlanner | None = None
        self._forecast: LazyForecast | None = None
        self._update_all_at: datetime | None = None
        self._is_changed = False

    def run_cycle(self, queue_input: QueueInput, memory: QueueMemory, experience: Experience) -> QueueCycleResult:
        began = self._cost()
        starts, newcomers, is_fresh = self._update_plan(queue_input, memory)
        self._is_changed = self._is_changed or bool(starts or newcomers)
        is_time = self._update_all_at is None or queue_input.now >= self._update_all_at
        if not is_fresh and not (self._is_changed and is_time):
            return self._update_some(queue_input, starts, newcomers, memory)
        result = self._update_all(queue_input, starts, memory, experience, is_fresh=is_fresh)
        self._update_all_at = queue_input.now + max(
            _SHORTEST_PAUSE, timedelta(seconds=_SHARE_OF_TIME * (self._cost() - began))
        )
        self._is_changed = False
        return result

    def _update_plan(self, queue_input: QueueInput, memory: QueueMemory) -> tuple[list[Start], list[Queued], bool]:
        """Starts, requests with a new planned start, and whether a full plan was made."""
        margin = queue_input.timing.teardown_margin
        if self._planner is None or queue_input.is_fair_share:
            promises = None if queue_input.is_fair_share else memory.promises
            self._planner = IncrementalPlanner(
                queue_input.gpu_type,
                queue_input.nodes,
                queue_input.allocations,
                queue_input.requests,
                now=queue_input.now,
                margin=margin,
                promises=promises,
            )
            return list(self._planner.collect_starts(queue_input.now)), [], True
        result = self._planner.update(queue_input.nodes, queue_input.allocations, queue_input.requests, queue_input.now)
        return list(result.starts), [] if result.remade else list(result.waits), result.remade

    def _update_all(
        self,
        queue_input: QueueInput,
        starts: list[Start],
        memory: QueueMemory,
        experience: Experience,
        *,
        is_fresh: bool,
    ) -> QueueCycleResult:
        assert self._planner is not None
        if not is_fresh:
            self._planner.replan(queue_input.now)
            starts += self._planner.collect_starts(queue_input.now)
        results: list[Start | Queued] = [*starts, *self._planner.iter_queued()]
        result, self._forecast = update_all_estimates(
            queue_input, results, memory.only_waiting(queue_input.waiting), experience
        )
        result.decisions.recheck_at(self._planner.next_at)
        return result

    def _update_some(
        self, queue_input: QueueInput, starts: list[Start], newcomers: list[Queued], memory: QueueMemory
    ) -> QueueCycleResult:
        assert self._planner is not None
        assert self._forecast is not None
        updater = EstimateUpdater(queue_input, memory)
        for start in starts:
            updater.add_start(start)
        requests = {request.reservation_id: request for request in queue_input.requests} if newcomers else {}
        for wait in newcomers:
            own, forecast = requests[wait.reservation_id], None
            if wait.estimate.latest is not None:
                forecast = self._forecast.get_forecast().forecast_newcomer(
                    own.units_per_node, own.node_count, own.duration, wait.estimate.latest
                )
            updater.add_queued(wait, forecast)
        updater.decisions.recheck_at(self._update_all_at if self._is_changed else None)
        updater.decisions.recheck_at(self._planner.next_at)
        return QueueCycleResult(updater.decisions, None, updater.memory)
