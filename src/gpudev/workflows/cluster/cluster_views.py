"""Cluster views: availability, status and plan, as shown to users.

The numbers come from the planner's own input, so that what is shown as available can be reserved.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.access.users import User
from gpudev.domain.cluster import Allocation, GpuType, Node
from gpudev.domain.ids import new_reservation_id
from gpudev.domain.queue import Estimate, QueuePlan
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, minutes_until
from gpudev.planning.cluster.availability import PlannedUse, compute_availability, free_units, usage_timeline
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.start_quotes import allocations_of, estimate_position
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import AvailabilityRow, CatalogueStore, NodeStore
from gpudev.ports.queue import PlanStore
from gpudev.ports.reservations import UnreleasedView
from gpudev.settings import LimitSettings, TimingSettings
from gpudev.wire.cluster import AvailabilityList, ClosedNode, ClusterStatus, GpuAvailability, NodeView
from gpudev.wire.queue import ClusterPlan, PlannedStart, PlanNode, PlanStep, TypePlan
from gpudev.workflows.reservation_views import current_estimate, sees_everything, wait_minutes

_LAST_IN_LINE = 2**62
_LIVE_FOR = timedelta(minutes=1)
"""A running processor publishes at least this often."""


@dataclass(frozen=True, slots=True)
class TypeStatusFacts:
    """The facts from which one GPU type's numbers are computed."""

    gpu_type: GpuType
    nodes: Sequence[Node]
    unreleased: Sequence[Reservation]
    plan: QueuePlan | None
    observed_at: datetime | None
    recorded: AvailabilityRow | None


@dataclass(frozen=True, slots=True)
class ClusterStatusViews:
    unreleased: UnreleasedView
    nodes: NodeStore
    catalogue: CatalogueStore
    plans: PlanStore
    clock: Clock
    limits: LimitSettings
    timing: TimingSettings

    async def availability(self) -> AvailabilityList:
        catalogue = await self.catalogue.catalogue()
        observed = {row.gpu_type: row for row in await self.catalogue.availability()}
        nodes, seen_at = await self.nodes.nodes()
        plans = await self.plans.refresh()
        unreleased = _group_by_type(await self.unreleased.refresh())
        facts = [
            TypeStatusFacts(
                gpu_type=gpu_type,
                nodes=[node for node in nodes if node.gpu_type == gpu_type.name],
                unreleased=unreleased[gpu_type.name],
                plan=plans.get(gpu_type.name),
                observed_at=seen_at,
                recorded=observed.get(gpu_type.name),
            )
            for gpu_type in catalogue.values()
            if gpu_type.is_active
        ]
        now, duration = self.clock.now(), timedelta(hours=self.limits.default_hours)
        return AvailabilityList(gpu_types=[describe_type(each, duration, now, self.timing) for each in facts])

    async def cluster_status(self, *, is_planning: bool) -> ClusterStatus:
        nodes, seen_at = await self.nodes.nodes()
        unreleased = await self.unreleased.refresh()
        views = node_views(nodes, allocations_of(unreleased, self.clock.now(), self.timing))
        catalogue = await self.catalogue.catalogue()
        with_gpus = [view for view in views if not _is_cpu(catalogue, view.gpu_type)]
        return ClusterStatus(
            nodes=views,
            total_gpus=sum(view.total_gpus for view in with_gpus),
            available_gpus=sum(view.available_gpus for view in with_gpus),
            active_reservations=sum(1 for each in unreleased if each.status is Status.ACTIVE),
            preparing_reservations=sum(1 for each in unreleased if each.status is Status.PREPARING),
            queued_reservations=sum(1 for each in unreleased if each.status.is_waiting),
            processor="alive" if is_planning else "no processor is alive: nothing starts until one is",
            seen_at=seen_at,
        )


def describe_type(
    facts: TypeStatusFacts, duration: timedelta, now: datetime, timing: TimingSettings
) -> GpuAvailability:
    row = _freshest_row(facts, now, timing)
    one_more = _quote_one_unit(facts, duration, now, timing)
    waiting = sum(1 for each in facts.unreleased if each.status.is_waiting)
    return GpuAvailability(
        gpu_type=facts.gpu_type.name,
        description=facts.gpu_type.description,
        instance_type=facts.gpu_type.instance_type,
        max_per_node=row.max_per_node,
        multinode=facts.gpu_type.multinode,
        total_cluster_gpus=row.total_cluster_gpus,
        available_gpus=row.available_gpus,
        max_reservable=row.max_reservable,
        full_nodes_available=row.full_nodes_available,
        running_instances=row.running_instances,
        desired_capacity=row.desired_capacity,
        queue_length=waiting,
        estimated_wait_minutes=wait_minutes(one_more, now),
        latest_wait_minutes=minutes_until(one_more.latest, now) if one_more and one_more.latest else None,
        wait_reason=one_more.reason if one_more and one_more.latest != now else None,
        simulated=any(node.simulated for node in facts.nodes),
        last_availability_update=row.updated_at,
        last_availability_updated_by=row.updated_by,
        age_seconds=None if row.updated_at is None else max(0.0, (now - row.updated_at).total_seconds()),
        closed_nodes=[
            ClosedNode(name=node.name, reason=node.closed_because or None)
            for node in facts.nodes
            if node.ready and not node.schedulable
        ],
    )


def _freshest_row(facts: TypeStatusFacts, now: datetime, timing: TimingSettings) -> AvailabilityRow:
    """The processor's live numbers, or the recorded ones if they are newer (no processor runs, and a reconciler has
    run). Columns that only the cloud knows are always the recorded ones."""
    recorded = facts.recorded if facts.recorded is not None and facts.recorded.updated_at is not None else None
    if recorded is not None and not _is_live(facts.observed_at, recorded.updated_at):
        return recorded
    live = compute_availability(facts.gpu_type, facts.nodes, allocations_of(facts.unreleased, now, timing))
    return AvailabilityRow(
        gpu_type=live.gpu_type,
        total_cluster_gpus=live.total if facts.nodes or not recorded else recorded.total_cluster_gpus,
        available_gpus=live.available,
        max_reservable=live.max_reservable,
        full_nodes_available=live.full_nodes_available,
        running_instances=recorded.running_instances if recorded else live.running_instances,
        desired_capacity=recorded.desired_capacity if recorded else live.running_instances,
        max_per_node=live.max_per_node,
        updated_at=facts.observed_at,
        updated_by=recorded.updated_by if recorded else None,
    )


def _is_live(observed_at: datetime | None, recorded_at: datetime | None) -> bool:
    return observed_at is not None and (recorded_at is None or recorded_at - observed_at <= _LIVE_FOR)


def node_views(nodes: Sequence[Node], allocations: Sequence[Allocation]) -> list[NodeView]:
    free = free_units(nodes, allocations)
    used = {node.name: node.foreign_units for node in nodes}
    for share in (share for allocation in allocations for share in allocation.shares):
        used[share.node] = used.get(share.node, 0) + share.units
    return [
        NodeView(
            name=node.name,
            gpu_type=node.gpu_type,
            ready=node.ready,
            schedulable=node.schedulable,
            simulated=node.simulated,
            total_gpus=node.units,
            used_gpus=min(node.units, used[node.name]),
            available_gpus=free[node.name],
            cordoned=node.closed_because is not None,
            cordon_reason=node.closed_because,
        )
        for node in nodes
    ]


def _group_by_type(reservations: Sequence[Reservation]) -> Mapping[str, list[Reservation]]:
    by_type: defaultdict[str, list[Reservation]] = defaultdict(list)
    for each in reservations:
        by_type[each.gpu_type].append(each)
    return by_type


def _quote_one_unit(
    facts: TypeStatusFacts, duration: timedelta, now: datetime, timing: TimingSettings
) -> Estimate | None:
    """The start quote of one GPU (or slot). None: no node."""
    if not facts.nodes:
        return None
    newcomer = Request(
        reservation_id=new_reservation_id(),
        seq=_LAST_IN_LINE,
        gpu_type=facts.gpu_type.name,
        units_per_node=1,
        node_count=1,
        duration=duration + timing.reservation_overhead,
        slots=facts.gpu_type.is_cpu,
    )
    return estimate_position(newcomer, facts.nodes, facts.unreleased, facts.plan, now=now, timing=timing)


def _is_cpu(catalogue: Mapping[str, GpuType], gpu_type: str) -> bool:
    known = catalogue.get(gpu_type)
    return known is not None and known.is_cpu


# The plan as shown to users: the coming hours of every node, and planned starts.


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
        allocations = allocations_of(unreleased, now, self.timing)
        waiting = [each for each in unreleased if each.status.is_waiting and gpu_type in (None, each.gpu_type)]
        types = []
        for name in sorted({node.gpu_type for node in nodes} | {each.gpu_type for each in waiting}):
            own = self._queued_by_position([each for each in waiting if each.gpu_type == name], plans.get(name))
            bookings = [booking for each, estimate in own if (booking := self._planned_use(each, estimate)) is not None]
            types.append(
                TypePlan(
                    gpu_type=name,
                    nodes=[_plan_node(n, allocations, bookings, now, until) for n in nodes if n.gpu_type == name],
                    waiting=[_planned_start(each, estimate, user) for each, estimate in own[:_MOST_LISTED]],
                    waiting_in_all=len(own),
                )
            )
        return ClusterPlan(begins=now, until=until, gpu_types=types)

    def _queued_by_position(
        self, waiting: Sequence[Reservation], plan: QueuePlan | None
    ) -> list[tuple[Reservation, Estimate]]:
        """Those with an estimate, by position."""
        placed = [(each, estimate) for each in waiting if (estimate := current_estimate(each, plan)) is not None]
        return sorted(placed, key=lambda pair: pair[1].position)

    def _planned_use(self, each: Reservation, estimate: Estimate) -> PlannedUse | None:
        if estimate.latest is None or not estimate.nodes:
            return None
        ends = estimate.latest + each.duration + self.timing.reservation_overhead
        return PlannedUse(estimate.latest, ends, estimate.nodes, max(1, each.gpu_count // each.node_count))


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


def _planned_start(each: Reservation, estimate: Estimate, user: User) -> PlannedStart:
    is_own = each.user_id == user.user_id
    return PlannedStart(
        position=estimate.position,
        gpu_count=each.gpu_count,
        node_count=each.node_count,
        latest=estimate.latest,
        expected=estimate.interval.expected if estimate.interval else None,
        nodes=list(estimate.nodes),
        mine=is_own,
        reservation_id=str(each.reservation_id) if is_own or sees_everything(user) else None,
        reason=estimate.reason,
    )
