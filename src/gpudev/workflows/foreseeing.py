"""The plan as people look at it: every node's coming hours, and who starts when."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.access.users import User
from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.queue import Estimate, QueuePlan
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.timeline import PlannedUse, usage_timeline
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import NodeStore, PlanStore, UnreleasedView
from gpudev.settings import TimingSettings
from gpudev.wire.cluster import ClusterPlan, PlannedStart, PlanNode, PlanStep, TypePlan
from gpudev.workflows.queue_position import allocations_of
from gpudev.workflows.reservation_views import current_estimate, sees_everything

_MOST_LISTED = 200


@dataclass(frozen=True, slots=True)
class ClusterPlanViews:
    unreleased: UnreleasedView
    nodes: NodeStore
    plans: PlanStore
    clock: Clock
    timing: TimingSettings

    async def view_plan(self, user: User, hours: float, gpu_type: str | None = None) -> ClusterPlan:
        nodes, _ = await self.nodes.nodes(gpu_type)
        unreleased = await self.unreleased.refresh()
        plans = await self.plans.refresh()
        now = self.clock.now()
        until = now + timedelta(hours=hours)
        holdings = allocations_of(unreleased, now, self.timing)
        waiting = [one for one in unreleased if one.status.is_waiting and gpu_type in (None, one.gpu_type)]
        types = []
        for name in sorted({node.gpu_type for node in nodes} | {one.gpu_type for one in waiting}):
            own = self._queued_by_position([one for one in waiting if one.gpu_type == name], plans.get(name))
            bookings = [booking for one, place in own if (booking := self._planned_use(one, place)) is not None]
            types.append(
                TypePlan(
                    gpu_type=name,
                    nodes=[_plan_node(n, holdings, bookings, now, until) for n in nodes if n.gpu_type == name],
                    waiting=[_planned_start(one, place, user) for one, place in own[:_MOST_LISTED]],
                    waiting_in_all=len(own),
                )
            )
        return ClusterPlan(begins=now, until=until, gpu_types=types)

    def _queued_by_position(
        self, waiting: Sequence[Reservation], plan: QueuePlan | None
    ) -> list[tuple[Reservation, Estimate]]:
        """Those that a processor has looked at, by position."""
        placed = [(one, place) for one in waiting if (place := current_estimate(one, plan)) is not None]
        return sorted(placed, key=lambda pair: pair[1].position)

    def _planned_use(self, one: Reservation, place: Estimate) -> PlannedUse | None:
        if place.latest is None or not place.nodes:
            return None
        ends = place.latest + one.duration + self.timing.reservation_overhead
        return PlannedUse(place.latest, ends, place.nodes, max(1, one.gpu_count // one.node_count))


def _plan_node(
    node: Node, allocations: Sequence[Allocation], planned_uses: Sequence[PlannedUse], now: datetime, until: datetime
) -> PlanNode:
    steps = usage_timeline(node, allocations, planned_uses, now, until)
    return PlanNode(
        name=node.name,
        total_gpus=node.units,
        offers=node.offers,
        steps=[PlanStep(at=step.at, used_gpus=step.used) for step in steps],
        cordon_reason=node.closed_because,
    )


def _planned_start(one: Reservation, place: Estimate, user: User) -> PlannedStart:
    mine = one.user_id == user.user_id
    return PlannedStart(
        position=place.position,
        gpu_count=one.gpu_count,
        node_count=one.node_count,
        latest=place.latest,
        expected=place.interval.expected if place.interval else None,
        nodes=list(place.nodes),
        mine=mine,
        reservation_id=str(one.reservation_id) if mine or sees_everything(user) else None,
        reason=place.reason,
    )
