"""One turn of one GPU type's queue: the plan that keeps what was promised, everybody's forecast, and what of both is
told and published."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpudev.domain.estimate import Estimate, QueuePlan
from gpudev.domain.ids import ReservationId
from gpudev.planning.forecasting import NOTHING_KNOWN, Experience, Known, TypeForecast
from gpudev.planning.outlook import offers, sizes_of
from gpudev.planning.plan import Start, Wait
from gpudev.planning.queue_telling import QueueMemory, Teller
from gpudev.planning.queueing import plan_type
from gpudev.planning.scene import Scene
from gpudev.planning.turn import Decisions


@dataclass(frozen=True, slots=True)
class QueueTurn:
    decisions: Decisions
    plan: QueuePlan | None
    """None: the one published before is near enough."""
    memory: QueueMemory


def decide_queue(scene: Scene, memory: QueueMemory | None = None, experience: Experience = NOTHING_KNOWN) -> QueueTurn:
    """Everybody is planned anew: for queues of usual length."""
    memory = (memory or QueueMemory()).only(scene.waiting)
    bound = None if scene.is_fair_share else memory.promises
    answers = list(plan_type(scene.facts(), scene.requests, bound))
    return tell_everybody(scene, answers, memory, experience)[0]


def tell_everybody(
    scene: Scene, answers: Iterable[Start | Wait], memory: QueueMemory, experience: Experience
) -> tuple[QueueTurn, TypeForecast]:
    """`answers`: to everybody who waits, in the queue's order."""
    plan = {each.reservation_id: each for each in answers}
    facts, known = scene.facts(), Known.of(experience)
    forecast = TypeForecast(facts, scene.requests, scene.began(), known, sizes_of(facts))
    latest = {each.reservation_id: each.starts_at for each in plan.values() if isinstance(each, Wait)}
    came = {who: row.created_at for who, row in scene.waiting.items()}
    forecasts = forecast.of_waiting(latest, came)
    teller = Teller(scene, memory)
    estimates: dict[ReservationId, Estimate] = {}
    for each in plan.values():
        if isinstance(each, Start):
            teller.start(each)
        else:
            estimates[each.reservation_id] = teller.wait(each, forecasts.get(each.reservation_id))
    published = QueuePlan(
        scene.gpu_type,
        scene.now,
        max((row.seq for row in scene.waiting.values()), default=0),
        estimates,
        tuple(offers(facts, plan, scene.requests, forecast, scene.timing.around_a_stay)),
        experience.habits.counts,
        known.newcomers.factors,
    )
    return QueueTurn(teller.decisions, published, teller.memory), forecast


def promises_of(plan: QueuePlan) -> dict[ReservationId, Wait]:
    """What a published plan promised: for a processor that takes over."""
    return {rid: Wait(rid, told.position, told.latest, told.nodes, told.reason) for rid, told in plan.waits.items()}
