"""The queues of all GPU types from turn to turn: what they remember, what they decided, what is published of them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import structlog

from gpudev.domain.access.users import FairShareUsage
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.metrics import instruments
from gpudev.planning.long_queue import LONG_QUEUE, LongQueue
from gpudev.planning.queue.estimate_updates import QueueMemory
from gpudev.planning.queue.fair_share import compute_fair_ranks
from gpudev.planning.queue.forecasting import NO_EXPERIENCE, Experience, learn_experience
from gpudev.planning.queue.queue_cycle import QueueCycleResult, decide_queue, promises_of
from gpudev.planning.queue.queue_input import QueueInput, RowCache, gather_queue_input
from gpudev.planning.reservations.reconcile_reservations import Decisions
from gpudev.ports.cluster import ClusterState
from gpudev.ports.reservations import EstimateStore, Lease, PlanStore, UserStore
from gpudev.processor.anchoring import DiskZones
from gpudev.processor.plan_publishing import PlanPublisher
from gpudev.settings import FairShareSettings, TimingSettings

log = structlog.get_logger(__name__)
_LEARN_EVERY = timedelta(minutes=1)
_SAMPLES_PER_TYPE, _OUTCOMES_PER_TYPE = 1000, 2500
"""What is learnt from: as much as the habits and the track record remember."""


class QueuePlanner:
    def __init__(
        self,
        plans: PlanStore,
        estimates: EstimateStore,
        users: UserStore,
        timing: TimingSettings,
        fair_share: FairShareSettings,
        *,
        disk_zones: DiskZones | None = None,
        from_long: int = LONG_QUEUE,
    ) -> None:
        """`anchoring` None: it does not matter where disks are. `from_long`: from how many on a queue is followed
        instead of planned anew every time."""
        self._disk_zones = disk_zones
        self._from_long = from_long
        self._long_queues: dict[str, LongQueue] = {}
        self._row_caches: dict[str, RowCache] = {}
        self._users = users
        self._fair_share = fair_share
        self._usage: Mapping[UserId, FairShareUsage] = {}
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
            self._memories = await self._load_memories(now)
            self._long_queues = {}
            self._publisher.reset()
            self._epoch = lease.epoch
        if self._learnt_at is None or not timedelta(0) <= now - self._learnt_at < _LEARN_EVERY:
            stays = await self._estimates.list_usage_samples(_SAMPLES_PER_TYPE)
            self._experience = learn_experience(stays, await self._estimates.outcomes(_OUTCOMES_PER_TYPE))
            self._learnt_at = now
        if self._fair_share.on:
            self._usage = await self._users.usage(now, timedelta(hours=self._fair_share.half_life_hours))

    async def load_zone_constraints(
        self, reservations: Sequence[Reservation], state: ClusterState, now: datetime
    ) -> None:
        """Before every turn: what else has to be known of those who wait."""
        if self._disk_zones is not None:
            await self._disk_zones.refresh(reservations, state, now)

    def decide(
        self, reservations: Sequence[Reservation], state: ClusterState, now: datetime, decisions: Decisions
    ) -> dict[str, str]:
        """Plan each type by itself, so that a type that cannot be planned stops no other. Answers the broken ones."""
        broken: dict[str, str] = {}
        waited_for = {r.gpu_type for r in reservations if r.status.is_waiting}
        for gpu_type in sorted(waited_for | {node.gpu_type for node in state.nodes}):
            try:
                turn = self._run_cycle(self._gather_input(reservations, state, now, gpu_type))
            except Exception as error:
                log.exception("plan.broken", gpu_type=gpu_type)
                instruments.broken_plans.labels(gpu_type).inc()
                broken[gpu_type] = f"{type(error).__name__}: {error}"
                self._long_queues.pop(gpu_type, None)
                continue
            self._memories[gpu_type] = turn.memory
            if turn.draft is not None:
                self._publisher.set_draft(turn.draft)
            decisions.add(turn.decisions)
        return broken

    def is_long(self, reservations: Sequence[Reservation]) -> bool:
        """Whether deciding may take so long that others should not wait for it."""
        return sum(1 for row in reservations if row.status.is_waiting) >= self._from_long

    async def publish(self, lease: Lease) -> None:
        await self._publisher.publish(lease)

    def _gather_input(
        self, reservations: Sequence[Reservation], state: ClusterState, now: datetime, gpu_type: str
    ) -> QueueInput:
        turns = self._fair_ranks(reservations, gpu_type, now)
        known = self._row_caches.setdefault(gpu_type, RowCache())
        anchors = self._disk_zones.zone_constraints if self._disk_zones is not None else None
        return gather_queue_input(
            reservations,
            state.nodes,
            now,
            self._timing,
            gpu_type,
            fair_ranks=turns,
            zone_constraints=anchors,
            cache=known,
        )

    def _run_cycle(self, queue_input: QueueInput) -> QueueCycleResult:
        memory = self._memories.get(queue_input.gpu_type) or QueueMemory()
        experience = self._experience.get(queue_input.gpu_type, NO_EXPERIENCE)
        # Half as many as make it long keep it so: a queue of about that length does not go back and forth.
        enough = self._from_long // 2 if queue_input.gpu_type in self._long_queues else self._from_long
        if len(queue_input.waiting) >= enough:
            return self._long_queues.setdefault(queue_input.gpu_type, LongQueue()).run_cycle(
                queue_input, memory, experience
            )
        self._long_queues.pop(queue_input.gpu_type, None)
        return decide_queue(queue_input, memory, experience)

    def _fair_ranks(
        self, reservations: Sequence[Reservation], gpu_type: str, now: datetime
    ) -> Mapping[ReservationId, int] | None:
        if not self._fair_share.on:
            return None
        patience = timedelta(hours=self._fair_share.patience_hours)
        return compute_fair_ranks(reservations, gpu_type, self._usage, now, patience)

    async def _load_memories(self, now: datetime) -> dict[str, QueueMemory]:
        promises = {gpu_type: promises_of(plan) for gpu_type, plan in (await self._plans.refresh()).items()}
        told = {
            outcome.estimate.reservation_id: outcome.estimate
            for outcome in await self._estimates.outcomes_since(now)
            if outcome.started_at is None
        }
        return {gpu_type: QueueMemory(promised, dict(told)) for gpu_type, promised in promises.items()}
