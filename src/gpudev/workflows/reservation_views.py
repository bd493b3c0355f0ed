"""Reservations as their owners see them: found by id or prefix, as wire models.

Another user's reservations do not exist for the caller, unless the caller is an operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from gpudev.domain.access.users import Role, User
from gpudev.domain.cluster import GpuUse
from gpudev.domain.errors import NotFound
from gpudev.domain.ids import MAX_CANDIDATES, ReservationId, ambiguous_id_error, parse_id_prefix
from gpudev.domain.queue import CONFIDENCE, Estimate, QueuePlan
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import (
    WORKLOAD_NAMESPACE,
    Reservation,
    ReservationEvent,
    find_utc_times,
    format_minutes,
    format_utc_time,
    minutes_until,
)
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import GpuUsage
from gpudev.ports.queue import PlanView
from gpudev.ports.reservations import ReservationStore
from gpudev.settings import TimingSettings
from gpudev.wire.reservations import EtaView, GpuUseView, JobEvent, JobView, NodeShareView

_ENDS_SOON = timedelta(minutes=30)
_EXAMINED_WITHIN = timedelta(seconds=30)
_PLANNED_WITHIN = timedelta(minutes=2)
"""Plans are published every half minute, also without a change."""
_PROCESSOR_AWAY = "the processor or its cluster seems to be down"


def sees_everything(user: User) -> bool:
    return user.role in (Role.OPERATOR, Role.ADMIN)


async def find_job(reservations: ReservationStore, user: User, text: str) -> Reservation:
    """The reservation that an id or its prefix means to this user.

    Raises Invalid for a malformed id, NotFound, and AmbiguousId with the candidates.
    """
    digits = parse_id_prefix(text, "job_id", "reservation id")
    if len(digits) == 32:
        found = await reservations.find_reservation(ReservationId(UUID(digits)))
        candidates = [found] if found and (found.user_id == user.user_id or sees_everything(user)) else []
    else:
        candidates = await reservations.find_by_prefix(digits, user.user_id, MAX_CANDIDATES)
        if not candidates and sees_everything(user):
            candidates = await reservations.find_by_prefix(digits, None, MAX_CANDIDATES)
    unreleased = [found for found in candidates if not found.is_released]
    if len(unreleased) == 1:
        return unreleased[0]  # released reservations do not make a short id ambiguous
    if not candidates:
        raise NotFound(f"{'there is' if sees_everything(user) else 'you have'} no reservation {text!r}")
    if len(candidates) > 1:
        raise ambiguous_id_error(text, [found.reservation_id for found in candidates])
    return candidates[0]


@dataclass(frozen=True, slots=True)
class ReservationViews:
    """Reservations as wire models; queue positions come from the published plan."""

    plans: PlanView
    clock: Clock
    timing: TimingSettings
    namespace: str = WORKLOAD_NAMESPACE
    """The Kubernetes namespace of dev servers."""
    usage: GpuUsage | None = None
    """None: GPU usage is not measured."""

    async def view_with_usage(self, reservation: Reservation) -> JobView:
        """With GPU usage, which costs one query."""
        view = await self.view(reservation)
        if self.usage is not None and reservation.status is Status.ACTIVE and reservation.gpu_count:
            view.gpus = [_gpu_use_view(use) for use in await self.usage.find_usage(reservation)] or None
        return view

    async def view(self, reservation: Reservation) -> JobView:
        (view,) = await self.views([reservation])
        return view

    async def views(self, reservations: Sequence[Reservation]) -> list[JobView]:
        plans: Mapping[str, QueuePlan] = {}
        if any(each.status.is_waiting for each in reservations):
            plans = await self.plans.refresh()
        now = self.clock.now()
        return [job_view(each, now, plans.get(each.gpu_type), self.timing, self.namespace) for each in reservations]


def _gpu_use_view(use: GpuUse) -> GpuUseView:
    return GpuUseView(
        gpu=use.gpu,
        node=use.node,
        at=use.at,
        busy=None if use.busy is None else round(use.busy, 4),
        memory_used_bytes=use.memory_used_bytes,
        memory_total_bytes=use.memory_total_bytes,
    )


def current_estimate(reservation: Reservation, plan: QueuePlan | None) -> Estimate | None:
    """The estimate of a queued request: from its row, or from the plan if that is newer. None: not examined yet."""
    planned = plan.estimates.get(reservation.reservation_id) if plan else None
    written = reservation.last_queue_update
    if plan is not None and planned is not None and (written is None or plan.made_at >= written):
        return planned
    return reservation.estimate


def job_view(
    reservation: Reservation,
    now: datetime,
    plan: QueuePlan | None,
    timing: TimingSettings,
    namespace: str = WORKLOAD_NAMESPACE,
) -> JobView:
    waiting = reservation.status.is_waiting
    connection = reservation.connection if reservation.status is Status.ACTIVE else None
    estimate = current_estimate(reservation, plan) if waiting else None
    return JobView(
        reservation_id=str(reservation.reservation_id),
        job_id=str(reservation.reservation_id),
        name=reservation.name,
        user=reservation.username,
        github_user=reservation.github_user,
        status=reservation.status.value,
        version=reservation.version,
        gpu_type=reservation.gpu_type,
        gpu_count=reservation.gpu_count,
        node_count=reservation.node_count,
        duration_hours=_duration(reservation).total_seconds() / 3600,
        priority=reservation.priority,
        created_at=reservation.created_at,
        launched_at=reservation.launched_at,
        expires_at=reservation.expires_at,
        cancelled_at=reservation.cancelled_at,
        reservation_ended=reservation.reservation_ended,
        released_at=reservation.released_at,
        queue_position=estimate.position if estimate else None,
        estimated_wait_minutes=wait_minutes(estimate, now),
        estimated_start_at=by_planned_ends(estimate, now, timing),
        eta=eta_view(estimate, timing),
        wait_reason=(estimate.reason or None) if estimate else None,
        last_queue_update=reservation.last_queue_update,
        step=None if reservation.status.is_terminal else reservation.step,
        failure_reason=reservation.failure_reason,
        disk_name=reservation.disk_name,
        image=reservation.image,
        pod_name=reservation.pod_name,
        namespace=namespace,
        nodes=[
            NodeShareView(rank=s.rank, node=s.node, gpu_count=_gpus(reservation, s.units), gpu_indices=[*s.gpu_indices])
            for s in reservation.shares
        ],
        node_ip=connection.host if connection else None,
        node_port=connection.port if connection else None,
        ssh_user=connection.user if connection else None,
        ssh_command=connection.ssh_command if connection else None,
        ssh_host_key=connection.host_key if connection else None,
        warning=_warning(reservation, plan, now),
        wait_until=reservation.wait_until if waiting else None,
        setup_outcome=reservation.setup_outcome,
        scratch_reason=reservation.scratch_reason,
        command=reservation.command,
        exit_code=reservation.exit_code,
        outcome=reservation.outcome,
    )


def wait_minutes(estimate: Estimate | None, now: datetime) -> int | None:
    """The expected wait; the guaranteed one if no expected start is known."""
    if estimate is None:
        return None
    awaited = estimate.interval.expected if estimate.interval else estimate.latest
    return None if awaited is None else minutes_until(awaited, now)


def by_planned_ends(estimate: Estimate | None, now: datetime, timing: TimingSettings) -> datetime | None:
    """The guaranteed start without the teardown margin: when those ahead end by plan."""
    if estimate is None or estimate.latest is None:
        return None
    return max(estimate.latest - timing.teardown_margin, min(now, estimate.latest))


def eta_view(estimate: Estimate | None, timing: TimingSettings) -> EtaView | None:
    if estimate is None or estimate.latest is None:
        return None
    span = estimate.interval
    return EtaView(
        expected=span.expected if span else None,
        interval_from=span.earliest if span else None,
        interval_to=span.latest_likely if span else None,
        confidence=CONFIDENCE,
        latest=estimate.latest,
        margin_seconds=timing.teardown_margin.total_seconds(),
    )


def event_view(event: ReservationEvent) -> JobEvent:
    return JobEvent(
        event_id=event.event_id,
        at=event.at,
        kind=event.kind,
        status=event.status.value,
        version=event.version,
        message=event.message,
        times=find_utc_times(event.message, event.at),
    )


def _duration(reservation: Reservation) -> timedelta:
    """With extensions, from its start on."""
    if reservation.launched_at is None or reservation.expires_at is None:
        return reservation.duration
    return reservation.expires_at - reservation.launched_at


def _gpus(reservation: Reservation, units: int) -> int:
    """0 for CPU slots, which are units but not GPUs."""
    return units if reservation.gpu_count else 0


def _warning(reservation: Reservation, plan: QueuePlan | None, now: datetime) -> str | None:
    sentences = []
    if reservation.status is Status.ACTIVE and reservation.expires_at is not None:
        left = reservation.expires_at - now
        if left <= _ENDS_SOON:
            sentences.append(f"this reservation ends in {format_minutes(minutes_until(reservation.expires_at, now))}")
    if reservation.status is Status.PENDING and now - reservation.created_at > _EXAMINED_WITHIN:
        since = format_utc_time(reservation.created_at, now)
        sentences.append(f"not examined by a processor since {since}: {_PROCESSOR_AWAY}")
    if reservation.status is Status.QUEUED and plan is not None and now - plan.made_at > _PLANNED_WITHIN:
        sentences.append(f"the queue was not examined since {format_utc_time(plan.made_at, now)}: {_PROCESSOR_AWAY}")
    if reservation.disk_id is None and not reservation.status.is_terminal:
        because = f", because {reservation.scratch_reason}" if reservation.scratch_reason else ""
        sentences.append(f"/home/dev is scratch space and is lost at the end of this reservation{because}")
    return "; ".join(sentences) or None
