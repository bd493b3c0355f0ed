"""The queues of all GPU types from turn to turn: what they remember, what they decided, what is published of them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import structlog

from gpudev.domain.access.users import Usage
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.metrics import instruments
from gpudev.planning.long_queue import LONG, LongQueue
from gpudev.planning.queue.estimate_updates import QueueMemory
from gpudev.planning.queue.fair_share import fair_turns
from gpudev.planning.queue.forecasting import NOTHING_KNOWN, Experience, learn
from gpudev.planning.queue.queue_cycle import QueueTurn, decide_queue, promises_of
from gpudev.planning.queue.queue_input import Known, Scene, gather
from gpudev.planning.reservations.reconcile_reservations import Decisions
from gpudev.ports.cluster import ClusterSeen
from gpudev.ports.reservations import EstimateStore, Lease, PlanStore, UserStore
from gpudev.processor.anchoring import Anchoring
from gpudev.processor.plan_publishing import PlanPublisher
from gpudev.settings import FairShare, Timing

log = structlog.get_logger(__name__)
_LEARN_EVERY = timedelta(minutes=1)
_STAYS_PER_TYPE, _OUTCOMES_PER_TYPE = 1000, 2500
"""What is learnt from: as much as the habits and the track record remember."""


class Queues:
    def __init__(
        self,
        plans: PlanStore,
        estimates: EstimateStore,
        users: UserStore,
        timing: Timing,
        fair_share: FairShare,
        *,
        anchoring: Anchoring | None = None,
        from_long: int = LONG,
    ) -> None:
        """`anchoring` None: it does not matter where disks are. `from_long`: from how many on a queue is followed
        instead of planned anew every time."""
        self._anchoring = anchoring
        self._from_long = from_long
        self._long: dict[str, LongQueue] = {}
        self._known: dict[str, Known] = {}
        self._users = users
        self._fair_share = fair_share
        self._usage: Mapping[UserId, Usage] = {}
        self._plans = plans
        self._estimates = estimates
        self._timing = timing
        self._epoch: int | None = None
        self._memories: dict[str, QueueMemory] = {}
        self._experience: Mapping[str, Experience] = {}
        self._learnt_at: datetime | None = None
        self._publisher = PlanPublisher(plans)

    async def prepare(self, lease: Lease, now: datetime) -> None:
        """Before the first turn with a lease: remember what the processor before us promised. Now and then: learn."""
        if lease.epoch != self._epoch:
            self._memories = await self._recall(now)
            self._long = {}
            self._publisher.forget()
            self._epoch = lease.epoch
        if self._learnt_at is None or not timedelta(0) <= now - self._learnt_at < _LEARN_EVERY:
            stays = await self._estimates.stays(_STAYS_PER_TYPE)
            self._experience = learn(stays, await self._estimates.outcomes(_OUTCOMES_PER_TYPE))
            self._learnt_at = now
        if self._fair_share.on:
            self._usage = await self._users.usage(now, timedelta(hours=self._fair_share.half_life_hours))

    async def look(self, reservations: Sequence[Reservation], seen: ClusterSeen, now: datetime) -> None:
        """Before every turn: what else has to be known of those who wait."""
        if self._anchoring is not None:
            await self._anchoring.refresh(reservations, seen, now)

    def decide(
        self, reservations: Sequence[Reservation], seen: ClusterSeen, now: datetime, decisions: Decisions
    ) -> dict[str, str]:
        """Plan each type by itself, so that a type that cannot be planned stops no other. Answers the broken ones."""
        broken: dict[str, str] = {}
        waited_for = {r.gpu_type for r in reservations if r.status.is_waiting}
        for gpu_type in sorted(waited_for | {node.gpu_type for node in seen.nodes}):
            try:
                turn = self._turn(self._scene(reservations, seen, now, gpu_type))
            except Exception as error:
                log.exception("plan.broken", gpu_type=gpu_type)
                instruments.broken_plans.labels(gpu_type).inc()
                broken[gpu_type] = f"{type(error).__name__}: {error}"
                self._long.pop(gpu_type, None)
                continue
            self._memories[gpu_type] = turn.memory
            if turn.draft is not None:
                self._publisher.offer(turn.draft)
            decisions.add(turn.decisions)
        return broken

    def is_long(self, reservations: Sequence[Reservation]) -> bool:
        """Whether deciding may take so long that others should not wait for it."""
        return sum(1 for row in reservations if row.status.is_waiting) >= self._from_long

    async def publish(self, lease: Lease) -> None:
        await self._publisher.publish(lease)

    def _scene(self, reservations: Sequence[Reservation], seen: ClusterSeen, now: datetime, gpu_type: str) -> Scene:
        turns = self._turns(reservations, gpu_type, now)
        known = self._known.setdefault(gpu_type, Known())
        anchors = self._anchoring.anchors if self._anchoring is not None else None
        return gather(reservations, seen.nodes, now, self._timing, gpu_type, turns=turns, anchors=anchors, known=known)

    def _turn(self, scene: Scene) -> QueueTurn:
        memory = self._memories.get(scene.gpu_type) or QueueMemory()
        experience = self._experience.get(scene.gpu_type, NOTHING_KNOWN)
        # Half as many as make it long keep it so: a queue of about that length does not go back and forth.
        enough = self._from_long // 2 if scene.gpu_type in self._long else self._from_long
        if len(scene.waiting) >= enough:
            return self._long.setdefault(scene.gpu_type, LongQueue()).turn(scene, memory, experience)
        self._long.pop(scene.gpu_type, None)
        return decide_queue(scene, memory, experience)

    def _turns(
        self, reservations: Sequence[Reservation], gpu_type: str, now: datetime
    ) -> Mapping[ReservationId, int] | None:
        if not self._fair_share.on:
            return None
        patience = timedelta(hours=self._fair_share.patience_hours)
        return fair_turns(reservations, gpu_type, self._usage, now, patience)

    async def _recall(self, now: datetime) -> dict[str, QueueMemory]:
        promises = {gpu_type: promises_of(plan) for gpu_type, plan in (await self._plans.refresh()).items()}
        told = {
            outcome.told.reservation_id: outcome.told
            for outcome in await self._estimates.outcomes_since(now)
            if outcome.started_at is None
        }
        return {gpu_type: QueueMemory(promised, dict(told)) for gpu_type, promised in promises.items()}
