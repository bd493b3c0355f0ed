"""Addon reconciler: applies the desired addons to running dev servers, one task per dev server.

Rows are authoritative: a wake-up only means that something may be due. Failures are retried; applying twice is
harmless.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import structlog

from gpudev.domain.errors import GpuDevError, Stale
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.domain.sessions.addons import Addons
from gpudev.keyed_tasks import KeyedTasks
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.planning import sessions as rules
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import Cluster, ServerSpec
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import AddonWork
from gpudev.processor.telemetry import bind_request_id
from gpudev.processor.workers import WorkLoop, log_errors

log = structlog.get_logger(__name__)
_AT_ONCE = 16
_MOST_DUE = 100
_SWEEP_EVERY = timedelta(seconds=5)
_PAUSE = timedelta(milliseconds=100)


class AddonReconciler:
    def __init__(
        self,
        store: AddonWork,
        reservations: ReservationStore,
        cluster: Cluster,
        clock: Clock,
    ) -> None:
        self._store = store
        self._reservations = reservations
        self._cluster = cluster
        self._clock = clock
        self._loop = WorkLoop("interiors", self._run_round, rest=_SWEEP_EVERY, pause=_PAUSE)
        self._tasks = KeyedTasks[ReservationId, None]("addons of", _AT_ONCE, on_end=lambda *_: self.wake())

    def wake(self) -> None:
        self._loop.wake()

    async def find_addons(self, reservation_id: ReservationId) -> Addons | None:
        """For the launch of its dev server."""
        return await self._store.find_addons(reservation_id)

    async def mark_due(self, reservation_id: ReservationId) -> None:
        await self._store.mark_due(reservation_id, now=self._clock.now())

    async def run(self, may_act: Callable[[], bool], watchdog: LoopWatchdog) -> None:
        """Until cancelled."""
        await self._loop.run(may_act, watchdog)

    async def close(self) -> None:
        await self._tasks.close()

    async def wait_idle(self) -> None:
        """Until no task is left (tests)."""
        await self._tasks.wait_idle()

    async def _run_round(self) -> timedelta:
        await self.begin_due()
        due = await self._store.next_due()
        left = _SWEEP_EVERY if due is None else due - self._clock.now()
        # What is due already has a task, whose end wakes this loop.
        return min(left, _SWEEP_EVERY) if left > timedelta(0) else _SWEEP_EVERY

    async def begin_due(self) -> None:
        for reservation_id in await self._store.due(self._clock.now(), _MOST_DUE):
            self._tasks.start(reservation_id, partial(self._reconcile, reservation_id))

    async def _reconcile(self, reservation_id: ReservationId) -> None:
        await log_errors("addons", self._apply(reservation_id), None, reservation_id=str(reservation_id))

    async def _apply(self, reservation_id: ReservationId) -> None:
        addons = await self._store.find_addons(reservation_id)
        reservation = await self._reservations.find_reservation(reservation_id)
        bind_request_id(reservation)
        if addons is None or reservation is None or reservation.status is not Status.ACTIVE:
            return
        try:
            status = await self._cluster.apply_addons(
                reservation_id,
                _all_keys(reservation.ssh_public_keys, addons),
                addons.jupyter.spec if addons.jupyter else None,
            )
            event = rules.describe_jupyter_change(addons, status)
        except GpuDevError as error:
            log.warning("addons.not_applied", reservation_id=str(reservation_id), error=str(error))
            await self._record_failure(addons, str(error))
            return
        except Exception as error:
            # Retried with the same pauses: an error that a user can cause must not keep the processor busy.
            log.exception("addons.apply_crashed", reservation_id=str(reservation_id))
            await self._record_failure(addons, f"unexpected error ({type(error).__name__})")
            return
        if not addons.is_applied:
            log.info("addons.applied", reservation_id=str(reservation_id), users=len(addons.collaborators))
        if event is not None:
            await self._record_event(reservation, event)
        now = self._clock.now()
        await self._store.record_result(rules.applied_result(addons, status, now), now=now)

    async def _record_failure(self, addons: Addons, error: str) -> None:
        now = self._clock.now()
        await self._store.record_result(rules.failed_result(addons, error, now), now=now)

    async def _record_event(self, reservation: Reservation, message: str) -> None:
        with contextlib.suppress(Stale):  # a line of history is not worth a retry
            change = changes.event_recorded(reservation, "jupyter", message)
            await self._reservations.apply_change(change, now=self._clock.now())


def with_addons(spec: ServerSpec, addons: Addons | None) -> ServerSpec:
    """The spec of a launch, with the current addons."""
    if addons is None:
        return spec
    return dataclasses.replace(
        spec,
        ssh_public_keys=_all_keys(spec.ssh_public_keys, addons),
        jupyter=addons.jupyter.spec if addons.jupyter else None,
    )


def _all_keys(owners: tuple[str, ...], addons: Addons) -> tuple[str, ...]:
    """The owner's first: a removed collaborator may have had the same key, and the owner keeps it."""
    return tuple(dict.fromkeys([*owners, *(key for user in addons.collaborators for key in user.ssh_public_keys)]))
