"""The planning loop: turns over on a wake-up (queue message, cluster event, timer): load facts, decide, write.

It never calls the outside while it decides or writes, and it writes only while it holds the planning lease.
Rows are the truth: a turn looks at everything that is not released, so a lost message or event costs at most
the time until the next sweep.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import structlog

from gpudev.domain.commands import PLANNING_LEASE
from gpudev.domain.cordon import close_nodes
from gpudev.domain.errors import LeaseLost, Unavailable
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.reservations.reservation import Reservation
from gpudev.metrics import instruments
from gpudev.metrics.loop_watchdog import Pulse
from gpudev.planning.cluster.orphans import count_orphans, decide_orphans
from gpudev.planning.overdue import decide_overdue
from gpudev.planning.reservations.reconcile_reservations import Decisions, decide_running
from gpudev.planning.reservations.stale_requests import decide_max_wait, still_waiting
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import Cluster, ClusterSeen
from gpudev.ports.cordons import ProcessorCordons
from gpudev.ports.own_setups import SetupStore
from gpudev.ports.reservations import Lease, LeaseStore, Queue, ReservationStore, UnreleasedView
from gpudev.ports.tracing import UNTRACED, Tracer
from gpudev.processor.addon_reconciler import Interiors
from gpudev.processor.cluster_publisher import Publisher
from gpudev.processor.disk_attachment import Homes
from gpudev.processor.disk_worker import DiskWork
from gpudev.processor.effect_runner import Effects
from gpudev.processor.expiry_report import ExpiryReport
from gpudev.processor.log_ids import log_changes
from gpudev.processor.messages import MESSAGES_PER_TURN, Messages
from gpudev.processor.pacing import Pacing
from gpudev.processor.planning_records import Looking
from gpudev.processor.queue_planner import Queues
from gpudev.processor.telemetry import trace_changes
from gpudev.settings import Timing

log = structlog.get_logger(__name__)
_TELL_AT_LEAST_EVERY = timedelta(seconds=1)
_LET_LAUNCH_S = 0.05


class Processor:
    def __init__(
        self,
        *,
        reservations: ReservationStore,
        unreleased: UnreleasedView,
        queue: Queue,
        leases: LeaseStore,
        cluster: Cluster,
        cordons: ProcessorCordons,
        queues: Queues,
        publisher: Publisher,
        looking: Looking,
        clock: Clock,
        timing: Timing,
        disks: DiskWork | None = None,
        homes: Homes | None = None,
        interiors: Interiors | None = None,
        setups: SetupStore | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        self._tracer = tracer
        self._reservations = reservations
        self._unreleased = unreleased
        self._messages = Messages(queue, reservations, timing.message_lease)
        self._leases = leases
        self._cluster = cluster
        self._cordons = cordons
        self._queues = queues
        self._publisher = publisher
        self._looking = looking
        self._clock = clock
        self._timing = timing
        self.pulse = Pulse(timing.stuck_after)
        self._woken = asyncio.Event()
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._lease: Lease | None = None
        self._orphans_since: dict[ReservationId, datetime] = {}
        self._next_at: datetime | None = None
        self._told_at: datetime | None = None
        self._zones: dict[str, str | None] = {}
        self.disks = disks
        self.interiors = interiors
        if disks is not None:
            disks.moved = self.wake
        self.effects = Effects(
            cluster,
            reservations,
            clock,
            timing,
            self.wake,
            homes=homes,
            interiors=interiors,
            setups=setups,
            tracer=tracer,
            zone_of=self._zone_of,
        )

    def wake(self) -> None:
        """Something may have changed. Cheap, and safe to call too often."""
        self._woken.set()
        if self.interiors is not None:
            self.interiors.wake()

    async def run(self) -> None:
        """Until cancelled. Whoever cancels decides what happens to dev servers (nothing, here)."""
        helpers = [
            asyncio.create_task(self._keep_lease(), name="lease"),
            asyncio.create_task(self._watch_cluster(), name="watch"),
        ]
        if self.disks is not None:
            helpers.append(asyncio.create_task(self.disks.run(lambda: self.is_planning, self.pulse), name="disks"))
        if self.interiors is not None:
            inside = self.interiors.run(lambda: self.is_planning, self.pulse)
            helpers.append(asyncio.create_task(inside, name="interiors"))
        pacing = Pacing()
        try:
            while True:
                self.pulse.beat("planning")
                await self._wait()
                began = time.monotonic()
                await self._turn_or_log()
                rest = pacing.rest_after(began, time.monotonic())
                if rest:
                    await asyncio.sleep(rest)
        finally:
            self.pulse.end("planning")
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self.effects.cancel()
            if self.disks is not None:
                await self.disks.close()
            if self.interiors is not None:
                await self.interiors.close()
            if self._lease is not None:
                with contextlib.suppress(Unavailable):
                    await self._leases.release(self._lease)

    async def acquire_lease(self) -> bool:
        """Take or keep the lease; the first turn follows at once when it is newly ours."""
        before = self._lease
        self._lease = await self._leases.acquire(PLANNING_LEASE, self._holder, self._timing.lease_ttl)
        if self._lease is not None and self._lease != before:
            log.info("lease.taken", holder=self._holder, epoch=self._lease.epoch)
            self.wake()
        elif self._lease is None and before is not None:
            log.warning("lease.lost", holder=self._holder)
        return self._lease is not None

    async def expire(self, rounds: int = 5, *, dry_run: bool = False) -> ExpiryReport | None:
        """The backstop for a system whose processor is away: end what is over, warn, and clear away, start nobody.
        None when a processor is at work, which does this all the time."""
        report = ExpiryReport()
        if dry_run:
            if await self._leases.is_held(PLANNING_LEASE):
                return None
            await self._expire_once(None, report)
            return report
        if not await self.acquire_lease() or (lease := self._lease) is None:
            return None
        try:
            for _ in range(rounds):
                is_more_to_do = await self._expire_once(lease, report)
                await self.effects.settle()
                if not is_more_to_do:
                    break
            left = [row for row in await self._unreleased.refresh() if row.needs_teardown]
            report.unfinished = [short_id(row.reservation_id) for row in left]
        finally:
            await self._leases.release(lease)
            self._lease = None
        return report

    async def _expire_once(self, lease: Lease | None, report: ExpiryReport) -> bool:
        """True: there may be more to do afterwards. `lease` None: only say what would be done."""
        seen = await self._look()
        report.errors = [] if seen is not None else ["the cluster cannot be seen, so only time decided"]
        reservations = await self._unreleased.refresh()
        now = self._clock.now()
        decisions = decide_overdue(reservations, seen, now, self._timing)
        done = frozenset(change.reservation_id for change in decisions.changes)
        if lease is not None:
            done = await self._write(lease, decisions, [], now)
            log_changes(decisions, done, reservations)
            self._act(decisions, done)
        report.note(decisions, done)
        if seen is not None:
            await self._expire_orphans(seen, reservations, now, report, act=lease is not None)
        return bool(decisions.changes or decisions.teardowns)

    async def _expire_orphans(
        self, seen: ClusterSeen, reservations: Sequence[Reservation], now: datetime, report: ExpiryReport, *, act: bool
    ) -> None:
        """The grace period goes from run to run, so what was seen first when is kept."""
        known = await self._looking.orphans_seen()
        orphans = decide_orphans(seen.servers, _owners(reservations), known, now, self._timing.orphan_grace)
        report.orphans = [str(one) for one in orphans.report]
        report.removed = [*dict.fromkeys([*report.removed, *(str(one) for one in orphans.remove)])]
        if act:
            await self._looking.set_orphans_seen(orphans.first_seen)
            for reservation_id in orphans.remove:
                self.effects.remove_orphan(reservation_id)

    @property
    def is_planning(self) -> bool:
        return self._lease is not None

    async def turn(self) -> None:
        """Look, decide, write, then start the effects."""
        lease = self._lease
        if lease is None:
            return
        messages = await self._messages.read()
        seen = await self._look()
        reservations = await self._unreleased.refresh()
        if seen is not None:
            seen = count_orphans(seen, _owners(reservations))
        now = self._clock.now()
        await self._queues.prepare(lease, now)
        decisions = decide_running(reservations, seen, now, self._timing, self.effects.may_lack)
        given_up = decide_max_wait(reservations, now)
        decisions.add(given_up)
        broken = await self._decide_queues(still_waiting(reservations, given_up), seen, now, decisions)
        looked_at = await self._messages.sort(messages, seen, reservations, broken, now)
        done = await self._write(lease, decisions, looked_at, now)
        log_changes(decisions, done, reservations)
        trace_changes(self._tracer, decisions.changes, done, reservations, now)
        self._act(decisions, done)
        for reservation_id, message in await self._cordons.take_notices():
            self.effects.tell(reservation_id, message)
        if seen is not None:
            self._sweep_orphans(seen, reservations, now)
            if not self._leaves_telling_to_the_next(decisions, now):
                await self._queues.publish(lease)
                await self._looking.note(lease, reservations, broken, now)
                await self._publisher.publish(lease, seen, await self._present(reservations, bool(done)), now)
                self._told_at = now
        self._next_at = decisions.next_at
        if len(messages) == MESSAGES_PER_TURN or (done and not decisions.starts):
            self.wake()
        elif done:
            # Right now another turn would only take time from those who start. Their launches wake us, too.
            asyncio.get_running_loop().call_later(_LET_LAUNCH_S, self.wake)

    def _leaves_telling_to_the_next(self, decisions: Decisions, now: datetime) -> bool:
        """Whoever starts comes first: a turn follows at once and tells the others. Not for ever, if many start."""
        recently = self._told_at is not None and timedelta(0) <= now - self._told_at < _TELL_AT_LEAST_EVERY
        return bool(decisions.starts) and recently

    async def _decide_queues(
        self, reservations: Sequence[Reservation], seen: ClusterSeen | None, now: datetime, decisions: Decisions
    ) -> dict[str, str]:
        if seen is None:
            return {}
        await self._queues.look(reservations, seen, now)
        with instruments.decide_seconds.time():
            if self._queues.is_long(reservations):  # heartbeats and effects go on meanwhile
                return await asyncio.to_thread(self._queues.decide, reservations, seen, now, decisions)
            return self._queues.decide(reservations, seen, now, decisions)

    async def _write(
        self, lease: Lease, decisions: Decisions, looked_at: list[int], now: datetime
    ) -> frozenset[ReservationId]:
        """All decisions at once. If one of them is poison to the database, each by itself, so that it stops no other
        (and no message is acknowledged: what was not written has not been looked at)."""
        try:
            return await self._reservations.apply(
                lease, decisions.changes, decisions.updates, looked_at, now=now, told=decisions.told
            )
        except (LeaseLost, Unavailable):
            raise
        except Exception:
            log.exception("write.broken", changes=len(decisions.changes))
        done: set[ReservationId] = set()
        for change in decisions.changes:
            try:
                done |= await self._reservations.apply(lease, [change], [], [], now=now)
            except (LeaseLost, Unavailable):
                raise
            except Exception:
                log.exception("change.broken", reservation_id=str(change.reservation_id))
        return frozenset(done)

    async def _present(self, reservations: Sequence[Reservation], changed: bool) -> Sequence[Reservation]:
        return await self._unreleased.refresh() if changed else reservations

    async def _look(self) -> ClusterSeen | None:
        try:
            seen = await self._cluster.look()
        except Unavailable as error:
            log.warning("cluster.unavailable", error=str(error))
            instruments.looks_failed.inc()
            return None
        self._zones = {node.name: node.zone for node in seen.nodes}
        return replace(seen, nodes=close_nodes(seen.nodes, await self._cordons.cordons()))

    def _zone_of(self, reservation: Reservation) -> str | None:
        """Where its first member will be, which has the disk."""
        return self._zones.get(reservation.shares[0].node) if reservation.shares else None

    def _act(self, decisions: Decisions, done: frozenset[ReservationId]) -> None:
        placed = [reservation for reservation in decisions.starts if reservation.reservation_id in done]
        for reservation in (*decisions.launches, *placed):
            self.effects.launch(reservation)
        for reservation in decisions.teardowns:
            self.effects.tear_down(reservation)
        for reservation in decisions.withdrawals:
            self.effects.withdraw(reservation)
        for reservation_id, message in decisions.messages:
            if reservation_id in done:
                self.effects.tell(reservation_id, message)

    def _sweep_orphans(self, seen: ClusterSeen, reservations: Sequence[Reservation], now: datetime) -> None:
        orphans = decide_orphans(
            seen.servers, _owners(reservations), self._orphans_since, now, self._timing.orphan_grace
        )
        for reservation_id in orphans.report:
            if reservation_id not in self._orphans_since:
                log.warning("orphan.found", reservation_id=str(reservation_id))
        self._orphans_since = dict(orphans.first_seen)
        instruments.orphans.set(len(self._orphans_since))
        for reservation_id in orphans.remove:
            self.effects.remove_orphan(reservation_id)

    async def _wait(self) -> None:
        """For a wake-up, the next moment at which time decides something, or the sweep."""
        timeout = self._timing.sweep_every
        if self._next_at is not None:
            timeout = max(timedelta(0), min(timeout, self._next_at - self._clock.now()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                await self._woken.wait()
        self._woken.clear()

    async def _turn_or_log(self) -> None:
        """The one loop that catches everything: it logs, counts, and the next sweep tries again."""
        if self._lease is None:
            return
        try:
            with instruments.turn_seconds.time():
                await self.turn()
            result = "done"
        except LeaseLost:
            self._lease = None
            log.warning("lease.lost", holder=self._holder)
            result = "lease_lost"
        except Unavailable as error:
            log.warning("turn.unavailable", error=str(error))
            result = "unavailable"
            await asyncio.sleep(0.2)
        except Exception:
            log.exception("turn.broken")
            result = "broken"
            await asyncio.sleep(1)
        instruments.turns.labels(result).inc()

    async def _keep_lease(self) -> None:
        while True:
            try:
                await self.acquire_lease()
            except Unavailable as error:
                # Unknown is not lost: writes are fenced by the epoch, and the next beat will tell.
                log.warning("lease.unavailable", error=str(error))
            except Exception:
                log.exception("lease.broken")
            self.pulse.beat("lease")
            beat = 3 if self._lease is not None else 10
            await asyncio.sleep(self._timing.lease_ttl.total_seconds() / beat)

    async def _watch_cluster(self) -> None:
        while True:
            try:
                async for _ in self._cluster.changes():
                    self.wake()
            except Unavailable as error:
                log.warning("watch.lost", error=str(error))
            except Exception:
                log.exception("watch.broken")
            await asyncio.sleep(1)


def _owners(reservations: Sequence[Reservation]) -> set[ReservationId]:
    """Who may have a dev server: whoever has a place. One that waits has none, or none any more."""
    return {reservation.reservation_id for reservation in reservations if reservation.shares}
