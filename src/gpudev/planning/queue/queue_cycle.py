"""One turn of one GPU type's queue: the plan that keeps what was promised, everybody's forecast, and what of both is
told and published."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, QueuePlan
from gpudev.planning.queue.estimate_updates import EstimateUpdater, QueueMemory
from gpudev.planning.queue.forecasting import NO_EXPERIENCE, Experience, Forecast, ForecastModel, TypeForecast
from gpudev.planning.queue.plan import Queued, Start
from gpudev.planning.queue.planner import plan_type
from gpudev.planning.queue.queue_input import QueueInput
from gpudev.planning.queue.start_quotes import quote_starts, request_sizes
from gpudev.planning.reservations.reconcile_reservations import Decisions

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
            {wait.reservation_id: wait.starts_at for wait in waits}, came
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


def promises_of(plan: QueuePlan) -> dict[ReservationId, Queued]:
    """What a published plan promised: for a processor that takes over."""
    return {
        rid: Queued(rid, told.position, told.latest, told.nodes, told.reason) for rid, told in plan.estimates.items()
    }
