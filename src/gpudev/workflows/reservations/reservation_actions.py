"""Cancel, extend and prioritise a reservation."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from gpudev.domain.access.users import User
from gpudev.domain.errors import Conflict, Forbidden, Invalid, Stale
from gpudev.domain.ids import short_id
from gpudev.domain.queue import MessageCause
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.extension import ExtensionDenied, ExtensionGranted, decide_extension
from gpudev.planning.queue.queue_input import to_allocation
from gpudev.planning.queue.start_quotes import allocations_of, queued_requests, with_zones
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import NodeStore
from gpudev.ports.queue import PlanStore
from gpudev.ports.reservations import ExtensionCount, ReservationStore, UnreleasedView
from gpudev.settings import LimitSettings, TimingSettings
from gpudev.workflows.guarded import retry_on
from gpudev.workflows.reservation_views import find_job, sees_everything


@dataclass(frozen=True, slots=True)
class Extension:
    reservations: ReservationStore
    unreleased: UnreleasedView
    nodes: NodeStore
    plans: PlanStore
    clock: Clock
    limits: LimitSettings
    timing: TimingSettings

    @retry_on(Stale)
    async def extend(self, user: User, job_id: str, hours: float) -> Reservation:
        """Raises Conflict with the reason and the latest possible end, Invalid for an invalid value."""
        found = await find_job(self.reservations, user, job_id)
        now = self.clock.now()
        extends = await self.reservations.extensions(found.gpu_type)
        until = await self._decide(found, hours, now)
        return await self._write(found, hours, until, now, extends)

    async def _decide(self, found: Reservation, hours: float, now: datetime) -> datetime:
        allocation = to_allocation(found, now, self.timing)
        if found.status is not Status.ACTIVE or allocation is None or found.launched_at is None:
            raise Conflict(
                f"only an active reservation can be extended; {short_id(found.reservation_id)} is {found.status}"
            )
        unreleased = await self.unreleased.refresh()
        nodes, _ = await self.nodes.nodes(found.gpu_type)
        plan = (await self.plans.refresh()).get(found.gpu_type)
        # In a thread: planning a long queue takes a while.
        decision = await asyncio.to_thread(
            decide_extension,
            found.reservation_id,
            allocation,
            hours,
            nodes=with_zones(nodes, plan),
            allocations=allocations_of(unreleased, now, self.timing),
            queue=queued_requests(unreleased, plan, self.timing),
            now=now,
            launched_at=found.launched_at,
            limits=self.limits,
            teardown_margin=self.timing.teardown_margin,
            promises=dict(plan.estimates) if plan else None,
        )
        match decision:
            case ExtensionGranted(until):
                return until
            case ExtensionDenied(reason, _, True):
                raise Invalid(reason, field="extension_hours")
            case ExtensionDenied(reason, _, _):
                raise Conflict(reason)
            case _:
                assert_never(decision)

    async def _write(
        self, found: Reservation, hours: float, until: datetime, now: datetime, extends: ExtensionCount
    ) -> Reservation:
        change = changes.extended(found, hours, until)
        return await self.reservations.apply_change(
            change, now=now, cause=MessageCause.EXTENDED, extension_count=extends
        )


# Cancel: the end is written at once; the teardown follows.


@dataclass(frozen=True, slots=True)
class Cancellation:
    reservations: ReservationStore
    clock: Clock

    @retry_on(Stale)
    async def cancel(self, user: User, job_id: str, exit_code: int | None = None) -> Reservation:
        """Idempotent. Raises Conflict if it has ended in another way. `exit_code`: of the command that the client ran
        there, after which it releases the reservation."""
        found = await find_job(self.reservations, user, job_id)
        if found.status is Status.CANCELLED:
            return found
        if found.status.is_terminal:
            raise Conflict(f"reservation {short_id(found.reservation_id)} has already ended: it is {found.status}")
        now = self.clock.now()
        message = f"cancelled by {user.username}" if exit_code is None else CommandExit(exit_code).summary
        change = changes.cancelled(found, message, now, exit_code=exit_code)
        return await self.reservations.apply_change(change, now=now, cause=MessageCause.CANCELLED)


# Prioritise: operators change the order of queued requests.


_HIGHEST_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Prioritisation:
    reservations: ReservationStore
    clock: Clock

    @retry_on(Stale)
    async def prioritise(self, user: User, job_id: str, priority: int) -> Reservation:
        if not sees_everything(user):
            raise Forbidden("only operators may set priorities")
        if not -_HIGHEST_PRIORITY <= priority <= _HIGHEST_PRIORITY:
            raise Invalid(f"a priority is a number from -{_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}", field="priority")
        found = await find_job(self.reservations, user, job_id)
        if not found.status.is_waiting:
            raise Conflict(
                f"only queued reservations have a priority; {short_id(found.reservation_id)} is {found.status}"
            )
        if found.priority == priority:
            return found
        change = changes.prioritised(found, priority, user.username)
        return await self.reservations.apply_change(change, now=self.clock.now(), cause=MessageCause.PRIORITISED)
