"""Effects: carries decisions out, many at once, bounded, each able to run twice. It decides nothing: what came of
an effect is written as a guarded change and seen by the next turn."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

import structlog

from gpudev.domain.commands import MAX_FAILURES
from gpudev.domain.errors import ClusterError, GpuDevError, Stale, Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.domain.sessions.personalization import NO_SETUP, OwnSetup
from gpudev.metrics import instruments
from gpudev.planning.disks.attachment import disk_failed
from gpudev.planning.reservations.launch_failures import postponed_launch
from gpudev.planning.reservations.reconcile_reservations import failed_launch, released, withdrawn
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import Cluster, HomeVolume, ServerSpec
from gpudev.ports.own_setups import SetupStore
from gpudev.ports.reservations import Change, ReservationStore
from gpudev.ports.tracing import UNTRACED, Tracer
from gpudev.processor.addon_reconciler import Interiors, furnished
from gpudev.processor.disk_attachment import DiskFailed, Homes, StillWorking
from gpudev.processor.log_ids import bind_request
from gpudev.processor.telemetry import trace_changes, trace_effect
from gpudev.settings import Timing

log = structlog.get_logger(__name__)


class Kind(StrEnum):
    LAUNCH = "launch"
    TEARDOWN = "teardown"
    WITHDRAW = "withdraw"
    REMOVE_ORPHAN = "remove_orphan"
    TELL = "tell"


class Effects:
    """At most one effect of a kind per reservation at a time; `done` is called after each."""

    def __init__(
        self,
        cluster: Cluster,
        reservations: ReservationStore,
        clock: Clock,
        timing: Timing,
        done: Callable[[], None],
        *,
        homes: Homes | None = None,
        setups: SetupStore | None = None,
        tracer: Tracer = UNTRACED,
        interiors: Interiors | None = None,
        zone_of: Callable[[Reservation], str | None] = lambda _: None,
        at_once: int = 32,
    ) -> None:
        """`homes` None: disks are the cluster's own affair. `setups` None: nobody brings one. `zone_of`: where a
        reservation's dev server will be."""
        self._cluster = cluster
        self._reservations = reservations
        self._clock = clock
        self._timing = timing
        self._done = done
        self._homes = homes
        self._setups = setups
        self._tracer = tracer
        self._interiors = interiors
        self._zone_of = zone_of
        self._slots = asyncio.Semaphore(at_once)
        self._running: dict[tuple[Kind, ReservationId], asyncio.Task[None]] = {}
        self._asked_meanwhile: set[tuple[Kind, ReservationId]] = set()
        """Which of these were wanted again since they began: there was news that they may not have seen."""
        self._asked: set[ReservationId] = set()
        self._unfinished: set[ReservationId] = set()
        """Whose launch we have begun, and of these, not brought to an end."""

    def launch(self, reservation: Reservation) -> None:
        self._start(Kind.LAUNCH, reservation.reservation_id, lambda: self._launch(reservation), about=reservation)

    def may_lack(self, reservation: Reservation) -> bool:
        """Whether something of it may not have been made: its launch broke off, or whoever began it is no more."""
        rid = reservation.reservation_id
        if (Kind.LAUNCH, rid) in self._running:
            return False
        return rid in self._unfinished or (reservation.status is Status.PREPARING and rid not in self._asked)

    def tear_down(self, reservation: Reservation) -> None:
        """Not before its launch has ended: what is made afterwards would stay, on a disk that another has by then."""
        launch = self._running.get((Kind.LAUNCH, reservation.reservation_id))
        self._start(
            Kind.TEARDOWN,
            reservation.reservation_id,
            lambda: self._tear_down(reservation),
            about=reservation,
            after=launch,
        )

    def withdraw(self, reservation: Reservation) -> None:
        """Not while it is still being launched there: what is made after the look would stay."""
        if (Kind.LAUNCH, reservation.reservation_id) not in self._running:
            self._start(
                Kind.WITHDRAW, reservation.reservation_id, lambda: self._withdraw(reservation), about=reservation
            )

    def remove_orphan(self, reservation_id: ReservationId) -> None:
        self._start(Kind.REMOVE_ORPHAN, reservation_id, lambda: self._remove_orphan(reservation_id))

    def tell(self, reservation_id: ReservationId, message: str) -> None:
        self._start(Kind.TELL, reservation_id, lambda: self._cluster.tell(reservation_id, message))

    async def settle(self) -> None:
        """Until nothing runs any more (tests, a clean stop)."""
        while self._running:
            await asyncio.wait(list(self._running.values()))

    async def cancel(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _start(
        self,
        kind: Kind,
        reservation_id: ReservationId,
        act: Callable[[], Awaitable[None]],
        *,
        about: Reservation | None = None,
        after: "asyncio.Task[None] | None" = None,
    ) -> None:
        key = (kind, reservation_id)
        if key in self._running:
            self._asked_meanwhile.add(key)
            return
        guarded = self._guard(kind, reservation_id, act, about, after)
        task = asyncio.create_task(guarded, name=f"{kind} {reservation_id}")
        self._running[key] = task
        task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: tuple[Kind, ReservationId]) -> None:
        self._running.pop(key, None)
        self._asked_meanwhile.discard(key)

    async def _guard(
        self,
        kind: Kind,
        reservation_id: ReservationId,
        act: Callable[[], Awaitable[None]],
        about: Reservation | None,
        after: "asyncio.Task[None] | None",
    ) -> None:
        """Nothing an effect raises ends the processor: the state says that it is still to be done. A success wakes the
        next turn, and so does news meanwhile; a failure waits for the sweep, so that nothing spins."""
        bind_request(about)
        if after is not None:  # without a slot, or those who wait could take them all
            await asyncio.wait({after})
        async with self._slots:
            began, result = time.perf_counter(), "done"
            try:
                await act()
                asyncio.get_running_loop().call_soon(self._done)
            except StillWorking as error:
                result = "waits"
                log.info("effect.waits", kind=kind, reservation_id=str(reservation_id), what=str(error))
                if (kind, reservation_id) in self._asked_meanwhile:
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
        current = await self._reservations.find(reservation.reservation_id)
        if current is None or not current.status.holds_capacity:
            return  # ended since it was decided
        self._asked.add(current.reservation_id)
        self._unfinished.add(current.reservation_id)
        try:
            current, volume = await self._home(current)
            await self._ensure_server(spec_of(current, volume, await self._setup(current)))
            self._unfinished.discard(current.reservation_id)
        except (StillWorking, Stale):
            raise
        except DiskFailed as error:
            await self._fail(current, disk_failed(current, str(error)))
        except Unavailable as error:
            now = self._clock.now()
            await self._reservations.change(postponed_launch(current, str(error), now, self._timing), now=now)
            raise
        except Exception as error:
            if not isinstance(error, ClusterError):
                log.exception("launch.broken", reservation_id=str(reservation.reservation_id))
            change = failed_launch(
                current, str(error) or type(error).__name__, self._clock.now(), self._timing, MAX_FAILURES
            )
            await self._fail(current, change)

    async def _fail(self, reservation: Reservation, change: Change) -> None:
        """For good, or until the next attempt."""
        now = self._clock.now()
        await self._reservations.change(change, now=now)
        trace_changes(self._tracer, [change], frozenset({reservation.reservation_id}), [reservation], now)

    async def _home(self, reservation: Reservation) -> tuple[Reservation, HomeVolume | None]:
        if self._homes is None or reservation.disk_id is None:
            return reservation, None
        return await self._homes.make_ready(reservation, reservation.disk_id, self._zone_of(reservation))

    async def _setup(self, reservation: Reservation) -> OwnSetup:
        return NO_SETUP if self._setups is None else await self._setups.setup_of(reservation.reservation_id)

    async def _ensure_server(self, spec: ServerSpec) -> None:
        """With all that its owner wants inside by now."""
        interior = None if self._interiors is None else await self._interiors.find(spec.reservation_id)
        await self._cluster.ensure_server(furnished(spec, interior))
        if self._interiors is not None and interior is not None:
            # It may have changed since we looked, and whatever the one before had made true is to be made so again.
            await self._interiors.look_again(spec.reservation_id)

    async def _tear_down(self, reservation: Reservation) -> None:
        await self._hear_what_is_there(reservation)
        await self._ensure_gone(reservation.reservation_id)
        self._forget(reservation.reservation_id)
        told = None
        if self._homes is not None and reservation.disk_id is not None:
            told = await self._homes.put_away(reservation, reservation.disk_id)
        await self._reservations.change(released(reservation, told), now=self._clock.now())

    async def _hear_what_is_there(self, reservation: Reservation) -> None:
        """Before the dev server goes: afterwards nobody may be able to look into its disk. No end depends on it."""
        if self._homes is None or reservation.disk_id is None:
            return
        try:
            contents = await self._cluster.home_contents(reservation.reservation_id)
            if contents is not None:
                await self._homes.hear(reservation, reservation.disk_id, contents)
        except GpuDevError as error:
            log.warning("contents.unheard", reservation_id=str(reservation.reservation_id), error=str(error))

    async def _withdraw(self, reservation: Reservation) -> None:
        await self._ensure_gone(reservation.reservation_id)
        self._forget(reservation.reservation_id)
        await self._reservations.change(withdrawn(reservation), now=self._clock.now())

    def _forget(self, reservation_id: ReservationId) -> None:
        self._asked.discard(reservation_id)
        self._unfinished.discard(reservation_id)

    async def _remove_orphan(self, reservation_id: ReservationId) -> None:
        """One that no row knows at all (a lost or restored database) is ended, but its files stay: nothing that
        holds somebody's data goes because a record is missing."""
        known = await self._reservations.find(reservation_id) is not None
        log.warning("orphan.removing", reservation_id=str(reservation_id), known=known)
        await self._ensure_gone(reservation_id, keep_files=not known)

    async def _ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> None:
        if not await self._cluster.ensure_gone(reservation_id, keep_files=keep_files):
            raise Unavailable("not everything it had is gone yet")


def spec_of(reservation: Reservation, volume: HomeVolume | None = None, setup: OwnSetup = NO_SETUP) -> ServerSpec:
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
        environment=setup.environment,
        dotfiles=setup.dotfiles,
        startup_script=setup.startup_script,
        volume=volume,
    )
