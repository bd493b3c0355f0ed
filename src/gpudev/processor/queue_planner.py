"""Plans the queues of all GPU types, cycle by cycle: memory, decisions, publication."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from gpudev.domain.access.users import FairShareUsage
from gpudev.domain.cluster import ZoneConstraint
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.metrics import instruments
from gpudev.planning.decisions import Decisions
from gpudev.planning.queue.estimate_updates import QueueMemory
from gpudev.planning.queue.fair_share import compute_fair_ranks
from gpudev.planning.queue.forecasting import NO_EXPERIENCE, Experience, learn_experience
from gpudev.planning.queue.queue_cycle import (
    LONG_QUEUE,
    LongQueue,
    PlanDraft,
    QueueCycleResult,
    decide_queue,
)
from gpudev.planning.queue.queue_input import QueueInput, RowCache, gather_queue_input
from gpudev.planning.queue.zone_constraints import constrain_to_disks
from gpudev.ports.access import UserStore
from gpudev.ports.cluster import ClusterState
from gpudev.ports.disks import DiskLocation, DiskLocations
from gpudev.ports.leases import Lease
from gpudev.ports.queue import EstimateStore, PlanStore
from gpudev.settings import FairShareSettings, TimingSettings

_RELOAD_EVERY = timedelta(seconds=10)


class DiskZones:
    def __init__(self, locations: DiskLocations, move_takes: timedelta) -> None:
        self._locations = locations
        self._move_takes = move_takes
        self._location_by_disk: dict[DiskId, DiskLocation | None] = {}
        self._loaded_at: datetime | None = None
        self.zone_constraints: Mapping[ReservationId, ZoneConstraint] = {}
        """Of queued requests. Replaced as a whole, never mutated."""

    async def refresh(self, reservations: Sequence[Reservation], state: ClusterState, now: datetime) -> None:
        if not any(node.zone for node in state.nodes):  # volumes are not bound to zones
            self.zone_constraints = {}
            return
        waiting = [row for row in reservations if row.disk_id is not None and row.status.is_waiting]
        wanted = {row.disk_id for row in waiting if row.disk_id is not None}
        self._location_by_disk = {
            disk_id: place for disk_id, place in self._location_by_disk.items() if disk_id in wanted
        }
        if self._loaded_at is None or not timedelta(0) <= now - self._loaded_at < _RELOAD_EVERY:
            self._location_by_disk, self._loaded_at = {}, now
        unknown = wanted - self._location_by_disk.keys()
        if unknown:
            found = await self._locations.find_locations(sorted(unknown))
            self._location_by_disk |= {disk_id: found.get(disk_id) for disk_id in unknown}
        places = {disk_id: place for disk_id, place in self._location_by_disk.items() if place is not None}
        self.zone_constraints = constrain_to_disks(waiting, places, self._move_takes)


# Publishes each GPU type's plan when it has changed, at a limited rate.


_AT_LEAST_EVERY = timedelta(seconds=30)
_CHEAP_SECONDS = 0.01
_SHARE_OF_TIME = 20
"""Building expensive plans takes at most a twentieth of the time."""


@dataclass(slots=True)
class _Published:
    made_at: datetime
    mark: object
    ended: float
    took: float


class PlanPublisher:
    def __init__(self, plans: PlanStore, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._plans = plans
        self._seconds = seconds
        self._drafts: dict[str, PlanDraft] = {}
        self._published: dict[str, _Published] = {}

    def reset(self) -> None:
        """Another processor may have published since."""
        self._drafts, self._published = {}, {}

    def set_draft(self, draft: PlanDraft) -> None:
        """The candidate for the next publication."""
        self._drafts[draft.gpu_type] = draft

    async def publish(self, lease: Lease) -> None:
        for gpu_type, draft in [*self._drafts.items()]:
            if not self._is_due(draft):
                continue
            began = self._seconds()
            plan = await asyncio.to_thread(draft.make) if draft.is_expensive else draft.make()
            ended = self._seconds()
            await self._plans.publish_plans(lease, [plan])
            self._published[gpu_type] = _Published(draft.made_at, draft.mark, ended, ended - began)
            del self._drafts[gpu_type]

    def _is_due(self, draft: PlanDraft) -> bool:
        last = self._published.get(draft.gpu_type)
        if last is None or not timedelta(0) <= draft.made_at - last.made_at < _AT_LEAST_EVERY:
            return True
        if draft.mark == last.mark:
            return False
        return last.took < _CHEAP_SECONDS or self._seconds() - last.ended >= _SHARE_OF_TIME * last.took


log = structlog.get_logger(__name__)
_LEARN_EVERY = timedelta(minutes=1)
_SAMPLES_PER_TYPE, _OUTCOMES_PER_TYPE = 1000, 2500
"""Samples to learn from: as many as usage ratios and track record keep."""


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
    ) -> None:
        """`disk_zones` None: disks are not bound to zones."""
        self._disk_zones = disk_zones
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
        """Before the first cycle with a lease: loads the promises of the previous processor. Periodically: learns."""
        if lease.epoch != self._epoch:
            self._memories = await self._load_memories(now)
            self._long_queues = {}
            self._publisher.reset()
            self._epoch = lease.epoch
        if self._learnt_at is None or not timedelta(0) <= now - self._learnt_at < _LEARN_EVERY:
            samples = await self._estimates.list_usage_samples(_SAMPLES_PER_TYPE)
            self._experience = learn_experience(samples, await self._estimates.outcomes(_OUTCOMES_PER_TYPE))
            self._learnt_at = now
        if self._fair_share.on:
            self._usage = await self._users.usage(now, timedelta(hours=self._fair_share.half_life_hours))

    async def load_zone_constraints(
        self, reservations: Sequence[Reservation], state: ClusterState, now: datetime
    ) -> None:
        """Before every cycle: zone constraints of queued requests."""
        if self._disk_zones is not None:
            await self._disk_zones.refresh(reservations, state, now)

    def decide(
        self, reservations: Sequence[Reservation], state: ClusterState, now: datetime, decisions: Decisions
    ) -> dict[str, str]:
        """Plans each type separately, so that an error in one does not stop the others. Returns the broken types with
        their errors."""
        broken: dict[str, str] = {}
        waited_for = {r.gpu_type for r in reservations if r.status.is_waiting}
        for gpu_type in sorted(waited_for | {node.gpu_type for node in state.nodes}):
            try:
                result = self._run_cycle(self._gather_input(reservations, state, now, gpu_type))
            except Exception as error:
                log.exception("plan.broken", gpu_type=gpu_type)
                instruments.broken_plans.labels(gpu_type).inc()
                broken[gpu_type] = f"{type(error).__name__}: {error}"
                self._long_queues.pop(gpu_type, None)
                continue
            self._memories[gpu_type] = result.memory
            if result.draft is not None:
                self._publisher.set_draft(result.draft)
            decisions.add(result.decisions)
        return broken

    def is_long(self, reservations: Sequence[Reservation]) -> bool:
        """Whether planning may take long, so that it should run in a thread."""
        return sum(1 for row in reservations if row.status.is_waiting) >= LONG_QUEUE

    async def publish(self, lease: Lease) -> None:
        await self._publisher.publish(lease)

    def _gather_input(
        self, reservations: Sequence[Reservation], state: ClusterState, now: datetime, gpu_type: str
    ) -> QueueInput:
        fair_ranks = self._fair_ranks(reservations, gpu_type, now)
        known = self._row_caches.setdefault(gpu_type, RowCache())
        zone_constraints = self._disk_zones.zone_constraints if self._disk_zones is not None else None
        return gather_queue_input(
            reservations,
            state.nodes,
            now,
            self._timing,
            gpu_type,
            fair_ranks=fair_ranks,
            zone_constraints=zone_constraints,
            cache=known,
        )

    def _run_cycle(self, queue_input: QueueInput) -> QueueCycleResult:
        memory = self._memories.get(queue_input.gpu_type) or QueueMemory()
        experience = self._experience.get(queue_input.gpu_type, NO_EXPERIENCE)
        # Hysteresis: a long queue stays long down to half the limit.
        enough = LONG_QUEUE // 2 if queue_input.gpu_type in self._long_queues else LONG_QUEUE
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
        promises = {gpu_type: dict(plan.estimates) for gpu_type, plan in (await self._plans.refresh()).items()}
        recorded = {
            outcome.estimate.reservation_id: outcome.estimate
            for outcome in await self._estimates.outcomes_since(now)
            if outcome.started_at is None
        }
        return {gpu_type: QueueMemory(promised, dict(recorded)) for gpu_type, promised in promises.items()}
