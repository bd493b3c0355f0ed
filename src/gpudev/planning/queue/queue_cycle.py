"""One turn of one GPU type's queue: the plan that keeps what was promised, everybody's forecast, and what of both is
told and published."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, QueuePlan
from gpudev.planning.queue.estimate_updates import QueueMemory, Teller
from gpudev.planning.queue.forecasting import NOTHING_KNOWN, Experience, Forecast, Known, TypeForecast
from gpudev.planning.queue.plan import Start, Wait
from gpudev.planning.queue.planner import plan_type
from gpudev.planning.queue.queue_input import Scene
from gpudev.planning.queue.start_quotes import offers, sizes_of
from gpudev.planning.reservations.reconcile_reservations import Decisions

_MANY_WAITING, _MANY_NODES = 200, 50


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A plan that could be published. Making it costs, so it is made only if it is."""

    gpu_type: str
    made_at: datetime
    is_dear: bool
    """It may take so long to make that others should not wait for it."""
    mark: object
    """Two drafts with equal marks say the same (what is expected creeps with the time; that alone is no news)."""
    make: Callable[[], QueuePlan]


@dataclass(frozen=True, slots=True)
class QueueTurn:
    decisions: Decisions
    draft: PlanDraft | None
    """None: the one published before is near enough."""
    memory: QueueMemory


def decide_queue(scene: Scene, memory: QueueMemory | None = None, experience: Experience = NOTHING_KNOWN) -> QueueTurn:
    """Everybody is planned anew: for queues of usual length."""
    memory = (memory or QueueMemory()).only(scene.waiting)
    bound = None if scene.is_fair_share else memory.promises
    answers = list(plan_type(scene.facts(), scene.requests, bound)) if scene.requests else []
    return tell_everybody(scene, answers, memory, experience)[0]


def tell_everybody(
    scene: Scene, answers: Sequence[Start | Wait], memory: QueueMemory, experience: Experience
) -> tuple[QueueTurn, "Forecasting"]:
    """`answers`: to everybody who waits, in the queue's order."""
    forecasting = Forecasting(scene, experience)
    waits = [each for each in answers if isinstance(each, Wait)]
    forecasts: Mapping[ReservationId, Forecast] = {}
    if waits:
        came = {who: row.created_at for who, row in scene.waiting.items()}
        forecasts = forecasting.get().of_waiting({wait.reservation_id: wait.starts_at for wait in waits}, came)
    teller = Teller(scene, memory)
    estimates: dict[ReservationId, Estimate] = {}
    for each in answers:
        if isinstance(each, Start):
            teller.start(each)
        else:
            estimates[each.reservation_id] = teller.wait(each, forecasts.get(each.reservation_id))
    draft = _draft(scene, answers, estimates, forecasting)
    return QueueTurn(teller.decisions, draft, teller.memory), forecasting


class Forecasting:
    """The forecast of one moment, made when it is first asked for."""

    def __init__(self, scene: Scene, experience: Experience) -> None:
        self._scene = scene
        self.experience = experience
        self.known = Known.of(experience)
        self._made: TypeForecast | None = None

    def get(self) -> TypeForecast:
        if self._made is None:
            facts = self._scene.facts()
            began = self._scene.began()
            self._made = TypeForecast(facts, self._scene.requests, began, self.known, sizes_of(facts))
        return self._made


def _draft(
    scene: Scene,
    answers: Sequence[Start | Wait],
    estimates: Mapping[ReservationId, Estimate],
    forecasting: Forecasting,
) -> PlanDraft:
    planned_seq = max((row.seq for row in scene.waiting.values()), default=0)

    def make() -> QueuePlan:
        plan = {each.reservation_id: each for each in answers}
        around = scene.timing.around_a_stay
        return QueuePlan(
            scene.gpu_type,
            scene.now,
            planned_seq,
            estimates,
            tuple(offers(scene.facts(), plan, scene.requests, forecasting.get(), around)),
            forecasting.experience.habits.counts,
            forecasting.known.newcomers.factors,
            {node.name: node.zone for node in scene.nodes if node.zone is not None},
            {request.reservation_id: request.anchor for request in scene.requests if request.anchor is not None},
        )

    mark = (
        planned_seq,
        tuple((who, told.position, told.latest, told.reason) for who, told in estimates.items()),
        tuple((holding.reservation_id, holding.until) for holding in scene.holdings),
        tuple(scene.nodes),
    )
    is_dear = len(estimates) > _MANY_WAITING or len(scene.nodes) > _MANY_NODES
    return PlanDraft(scene.gpu_type, scene.now, is_dear, mark, make)


def promises_of(plan: QueuePlan) -> dict[ReservationId, Wait]:
    """What a published plan promised: for a processor that takes over."""
    return {rid: Wait(rid, told.position, told.latest, told.nodes, told.reason) for rid, told in plan.waits.items()}
