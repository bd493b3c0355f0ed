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
    """A plan that could be published. Making it costs, so it is made only if it is."""

    gpu_type: str
    made_at: datetime
    is_expensive: bool
    """It may take so long to make that others should not wait for it."""
    mark: object
    """Two drafts with equal marks say the same (what is expected creeps with the time; that alone is no news)."""
    make: Callable[[], QueuePlan]


@dataclass(frozen=True, slots=True)
class QueueCycleResult:
    decisions: Decisions
    draft: PlanDraft | None
    """None: the one published before is near enough."""
    memory: QueueMemory


def decide_queue(
    queue_input: QueueInput, memory: QueueMemory | None = None, experience: Experience = NO_EXPERIENCE
) -> QueueCycleResult:
    """Everybody is planned anew: for queues of usual length."""
    memory = (memory or QueueMemory()).only_waiting(queue_input.waiting)
    bound = None if queue_input.is_fair_share else memory.promises
    answers = list(plan_type(queue_input.facts(), queue_input.requests, bound)) if queue_input.requests else []
    return update_all_estimates(queue_input, answers, memory, experience)[0]


def update_all_estimates(
    queue_input: QueueInput, answers: Sequence[Start | Queued], memory: QueueMemory, experience: Experience
) -> tuple[QueueCycleResult, "LazyForecast"]:
    """`answers`: to everybody who waits, in the queue's order."""
    forecasting = LazyForecast(queue_input, experience)
    waits = [each for each in answers if isinstance(each, Queued)]
    forecasts: Mapping[ReservationId, Forecast] = {}
    if waits:
        came = {who: row.created_at for who, row in queue_input.waiting.items()}
        forecasts = forecasting.get_forecast().forecast_waiting(
            {wait.reservation_id: wait.estimate.latest for wait in waits}, came
        )
    teller = EstimateUpdater(queue_input, memory)
    estimates: dict[ReservationId, Estimate] = {}
    for each in answers:
        if isinstance(each, Start):
            teller.add_start(each)
        else:
            estimates[each.reservation_id] = teller.add_queued(each, forecasts.get(each.reservation_id))
    draft = _make_draft(queue_input, answers, estimates, forecasting)
    return QueueCycleResult(teller.decisions, draft, teller.memory), forecasting


class LazyForecast:
    """The forecast of one moment, made when it is first asked for."""

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
    answers: Sequence[Start | Queued],
    estimates: Mapping[ReservationId, Estimate],
    forecasting: LazyForecast,
) -> PlanDraft:
    planned_seq = max((row.seq for row in queue_input.waiting.values()), default=0)

    def make() -> QueuePlan:
        plan = {each.reservation_id: each for each in answers}
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
        tuple((who, told.position, told.latest, told.reason) for who, told in estimates.items()),
        tuple((holding.reservation_id, holding.until) for holding in queue_input.allocations),
        tuple(queue_input.nodes),
    )
    is_dear = len(estimates) > _MANY_WAITING or len(queue_input.nodes) > _MANY_NODES
    return PlanDraft(queue_input.gpu_type, queue_input.now, is_dear, mark, make)


# Long queues: events are answered by the incremental planner; the full plan is recomputed only as often as it takes a
# small share of the time.


LONG_QUEUE = 500
"""From how many on a queue is long. A full turn of so many takes tens of milliseconds."""
_SHORTEST_PAUSE = timedelta(seconds=5)
_SHARE_OF_TIME = 20
"""Telling everybody takes at most a twentieth of the time."""


class LongQueue:
    def __init__(self, cost: Callable[[], float] = time.perf_counter) -> None:
        """`cost`: measures what a full turn took, in seconds."""
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
        turn = self._update_all(queue_input, starts, memory, experience, is_fresh=is_fresh)
        self._update_all_at = queue_input.now + max(
            _SHORTEST_PAUSE, timedelta(seconds=_SHARE_OF_TIME * (self._cost() - began))
        )
        self._is_changed = False
        return turn

    def _update_plan(self, queue_input: QueueInput, memory: QueueMemory) -> tuple[list[Start], list[Queued], bool]:
        """Who starts because of what happened since, whose place is new, and whether everybody's may be: then all
        were planned anew just now."""
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
        turn = self._planner.update(queue_input.nodes, queue_input.allocations, queue_input.requests, queue_input.now)
        return list(turn.starts), [] if turn.remade else list(turn.waits), turn.remade

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
        answers: list[Start | Queued] = [*starts, *self._planner.iter_queued()]
        turn, self._forecast = update_all_estimates(
            queue_input, answers, memory.only_waiting(queue_input.waiting), experience
        )
        turn.decisions.recheck_at(self._planner.next_at)
        return turn

    def _update_some(
        self, queue_input: QueueInput, starts: list[Start], newcomers: list[Queued], memory: QueueMemory
    ) -> QueueCycleResult:
        assert self._planner is not None
        assert self._forecast is not None
        teller = EstimateUpdater(queue_input, memory)
        for start in starts:
            teller.add_start(start)
        requests = {request.reservation_id: request for request in queue_input.requests} if newcomers else {}
        for wait in newcomers:
            own, forecast = requests[wait.reservation_id], None
            if wait.estimate.latest is not None:
                forecast = self._forecast.get_forecast().forecast_newcomer(
                    own.units_per_node, own.node_count, own.duration, wait.estimate.latest
                )
            teller.add_queued(wait, forecast)
        teller.decisions.recheck_at(self._update_all_at if self._is_changed else None)
        teller.decisions.recheck_at(self._planner.next_at)
        return QueueCycleResult(teller.decisions, None, teller.memory)
