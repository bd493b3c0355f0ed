"""Effect runner: carries out decisions, many at once. Each effect can run twice.

It decides nothing: the result is written as a guarded change and examined by the next cycle.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

import structlog

from gpudev.domain.errors import ClusterError, GpuDevError, Stale, Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import MAX_MESSAGE_FAILURES
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.personalization import Personalization
from gpudev.domain.reservations.reservation import Reservation
from gpudev.keyed_tasks import KeyedTasks
from gpudev.metrics import instruments
from gpudev.planning.disks.attachment import disk_failed_change
from gpudev.planning.reservations.requeue import failed_launch_change, postpone_launch
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import Cluster, HomeVolume, ServerSpec
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import PersonalizationStore
from gpudev.ports.tracing import Tracer
from gpudev.processor.addon_reconciler import AddonReconciler, with_addons
from gpudev.processor.disk_attachment import AttachmentPending, DiskAttacher, DiskFailed
from gpudev.processor.telemetry import bind_request_id, trace_changes, trace_effect
from gpudev.settings import TimingSettings

log = structlog.get_logger(__name__)
_AT_ONCE = 32


class EffectKind(StrEnum):
    LAUNCH = "launch"
    TEARDOWN = "teardown"
    WITHDRAW = "withdraw"
    REMOVE_ORPHAN = "remove_orphan"
    SEND_MESSAGE = "tell"


class EffectRunner:
    """Runs at most one effect of a kind per reservation at a time; `done` is called after each."""

    def __init__(
        self,
        cluster: Cluster,
        reservations: ReservationStore,
        clock: Clock,
        timing: TimingSettings,
        done: Callable[[], None],
        *,
        addons: AddonReconciler,
        personalizations: PersonalizationStore,
        zone_of: Callable[[Reservation], str | None],
        disk_attacher: DiskAttacher | None,
        tracer: Tracer,
    ) -> None:
        """`zone_of`: the zone of a reservation's dev server. `disk_attacher` None: the cluster manages disks itself."""
        self._cluster = cluster
        self._reservations = reservations
        self._clock = clock
        self._timing = timing
        self._done = done
        self._disk_attacher = disk_attacher
        self._personalizations = personalizations
        self._tracer = tracer
        self._addons = addons
        self._zone_of = zone_of
        self._tasks = KeyedTasks[tuple[EffectKind, ReservationId], None]("effect", _AT_ONCE)
        self._launched: set[ReservationId] = set()
        self._incomplete: set[ReservationId] = set()
        """Launches begun by this process, and those of them not completed."""

    def launch(self, reservation: Reservation) -> None:
        self._start(EffectKind.LAUNCH, reservation.reservation_id, lambda: self._launch(reservation), about=reservation)

    def is_launch_incomplete(self, reservation: Reservation) -> bool:
        """Whether objects of it may be missing: its launch was interrupted, or another process began it."""
        rid = reservation.reservation_id
        if (EffectKind.LAUNCH, rid) in self._tasks:
            return False
        return rid in self._incomplete or (reservation.status is Status.PREPARING and rid not in self._launched)

    def tear_down(self, reservation: Reservation) -> None:
        """Waits for the end of its launch: objects created later would stay, on a disk that another reservation has by
        then."""
        launch = self._tasks.find_task((EffectKind.LAUNCH, reservation.reservation_id))
        self._start(
            EffectKind.TEARDOWN,
            reservation.reservation_id,
            lambda: self._tear_down(reservation),
            about=reservation,
            after=launch,
        )

    def withdraw(self, reservation: Reservation) -> None:
        """Not while it is being launched: objects created after the observation would stay."""
        if (EffectKind.LAUNCH, reservation.reservation_id) not in self._tasks:
            self._start(
                EffectKind.WITHDRAW, reservation.reservation_id, lambda: self._withdraw(reservation), about=reservation
            )

    def remove_orphan(self, reservation_id: ReservationId) -> None:
        self._start(EffectKind.REMOVE_ORPHAN, reservation_id, lambda: self._remove_orphan(reservation_id))

    def send_message(self, reservation_id: ReservationId, message: str) -> None:
        self._start(
            EffectKind.SEND_MESSAGE, reservation_id, lambda: self._cluster.send_message(reservation_id, message)
        )

    async def wait_idle(self) -> None:
        """Until nothing runs any more (tests, a clean stop)."""
        await self._tasks.wait_idle()

    async def cancel(self) -> None:
        await self._tasks.close()

    def _start(
        self,
        kind: EffectKind,
        reservation_id: ReservationId,
        act: Callable[[], Awaitable[None]],
        *,
        about: Reservation | None = None,
        after: "asyncio.Task[None] | None" = None,
    ) -> None:
        self._tasks.start(
            (kind, reservation_id), lambda: self._run_effect(kind, reservation_id, act, about), after=after
        )

    async def _run_effect(
        self,
        kind: EffectKind,
        reservation_id: ReservationId,
        act: Callable[[], Awaitable[None]],
        about: Reservation | None,
    ) -> None:
        """Catches everything: the state shows that the effect is still due. A success wakes the next cycle, and so does
        a change meanwhile. A failure waits for the sweep, which prevents busy loops."""
        bind_request_id(about)
        began, result = time.perf_counter(), "done"
        try:
            await act()
            asyncio.get_running_loop().call_soon(self._done)
        except AttachmentPending as error:
            result = "waits"
            log.info("effect.waiting", kind=kind, reservation_id=str(reservation_id), reason=str(error))
            if self._tasks.was_requested_again((kind, reservation_id)):
                asyncio.get_running_loop().call_soon(self._done)
        except Stale:
            result = "stale"
            asyncio.get_running_loop().call_soon(self._done)
            log.info("effect.stale", kind=kind, reservation_id=str(reservation_id))
        except GpuDevError as error:
            result = "failed"
            log.warning("effect.failed", kind=kind, reservation_id=str(reservation_id), error=str(error))
        except Exception:
            result = "broken"
            log.exception("effect.broken", kind=kind, reservation_id=str(reservation_id))
        instruments.effects.labels(kind, result).inc()
        seconds = time.perf_counter() - began
        instruments.effect_seconds.labels(kind).observe(seconds)
        trace_effect(self._tracer, reservation_id, kind, result, seconds)

    async def _launch(self, reservation: Reservation) -> None:
        current = await self._reservations.find_reservation(reservation.reservation_id)
        if current is None or not current.status.holds_capacity:
            return  # ended since it was decided
        self._launched.add(current.reservation_id)
        self._incomplete.add(current.reservation_id)
        try:
            current, volume = await self._attach_disk(current)
            personalization = await self._personalizations.load_personalization(current.reservation_id)
            await self._ensure_server(make_server_spec(current, volume, personalization))
            self._incomplete.discard(current.reservation_id)
        except (AttachmentPending, Stale):
            raise
        except DiskFailed as error:
            await self._fail(current, disk_failed_change(current, str(error)))
        except Unavailable as error:
            now = self._clock.now()
            await self._reservations.apply_change(postpone_launch(current, str(error), now, self._timing), now=now)
            raise
        except Exception as error:
            if not isinstance(error, ClusterError):
                log.exception("launch.broken", reservation_id=str(reservation.reservation_id))
            change = failed_launch_change(
                current, str(error) or type(error).__name__, self._clock.now(), self._timing, MAX_MESSAGE_FAILURES
            )
            await self._fail(current, change)

    async def _fail(self, reservation: Reservation, change: Change) -> None:
        """Finally, or until the next attempt."""
        now = self._clock.now()
        await self._reservations.apply_change(change, now=now)
        trace_changes(self._tracer, [change], frozenset({reservation.reservation_id}), [reservation], now)

    async def _attach_disk(self, reservation: Reservation) -> tuple[Reservation, HomeVolume | None]:
        if self._disk_attacher is None or reservation.disk_id is None:
            return reservation, None
        return await self._disk_attacher.make_ready(reservation, reservation.disk_id, self._zone_of(reservation))

    async def _ensure_server(self, spec: ServerSpec) -> None:
        """With its current addons."""
        addons = await self._addons.find_addons(spec.reservation_id)
        await self._cluster.ensure_server(with_addons(spec, addons))
        if addons is not None:
            # Addons may have changed since, and a new dev server needs them applied again.
            await self._addons.mark_due(spec.reservation_id)

    async def _tear_down(self, reservation: Reservation) -> None:
        await self._save_home_contents(reservation)
        await self._ensure_gone(reservation.reservation_id)
        self._forget(reservation.reservation_id)
        disk_outcome = None
        if self._disk_attacher is not None and reservation.disk_id is not None:
            disk_outcome = await self._disk_attacher.put_away(reservation, reservation.disk_id)
        await self._reservations.apply_change(changes.released(reservation, disk_outcome), now=self._clock.now())

    async def _save_home_contents(self, reservation: Reservation) -> None:
        """Before the teardown: afterwards the disk may not be readable. The teardown does not depend on it."""
        if self._disk_attacher is None or reservation.disk_id is None:
            return
        try:
            contents = await self._cluster.home_contents(reservation.reservation_id)
            if contents is not None:
                await self._disk_attacher.save_reported_contents(reservation, reservation.disk_id, contents)
        except GpuDevError as error:
            log.warning("contents.unavailable", reservation_id=str(reservation.reservation_id), error=str(error))

    async def _withdraw(self, reservation: Reservation) -> None:
        await self._ensure_gone(reservation.reservation_id)
        self._forget(reservation.reservation_id)
        await self._reservations.apply_change(changes.withdrawn(reservation), now=self._clock.now())

    def _forget(self, reservation_id: ReservationId) -> None:
        self._launched.discard(reservation_id)
        self._incomplete.discard(reservation_id)

    async def _remove_orphan(self, reservation_id: ReservationId) -> None:
        """If no row knows it (a lost or restored database), its files stay: a missing record never removes user
        data."""
        known = await self._reservations.find_reservation(reservation_id) is not None
        log.warning("orphan.removing", reservation_id=str(reservation_id), known=known)
        await self._ensure_gone(reservation_id, keep_files=not known)

    async def _ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> None:
        if not await self._cluster.ensure_gone(reservation_id, keep_files=keep_files):
            raise Unavailable("the teardown is not complete yet")


def make_server_spec(
    reservation: Reservation, volume: HomeVolume | None, personalization: Personalization
) -> ServerSpec:
    return ServerSpec(
        reservation_id=reservation.reservation_id,
        pod_name=reservation.pod_name,
        user_id=reservation.user_id,
        username=reservation.username,
        gpu_type=reservation.gpu_type,
        gpu_count=reservation.gpu_count,
        shares=reservation.shares,
        ssh_public_keys=reservation.ssh_public_keys,
        disk_id=reservation.disk_id,
        disk_name=reservation.disk_name,
        image=reservation.image,
        name=reservation.name,
        expires_at=reservation.expires_at,
        environment=personalization.environment,
        dotfiles=personalization.dotfiles,
        startup_script=personalization.startup_script,
        volume=volume,
    )
