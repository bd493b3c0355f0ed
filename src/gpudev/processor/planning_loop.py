"""The planning loop: on a wake-up (message, cluster event, timer) load facts, decide, write.

It makes no external calls while it decides or writes, and writes only while it holds the planning lease. Rows are
authoritative: a cycle examines everything unreleased, so a lost message or event costs at most the time until the next
sweep.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import structlog

from gpudev.domain.cluster import apply_cordons
from gpudev.domain.errors import LeaseLost, Unavailable
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.queue import MESSAGE_LEASE, PLANNING_LEASE, RESERVATION_QUEUE
from gpudev.domain.reservations.reservation import Reservation
from gpudev.metrics import instruments
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.planning.cluster.orphans import count_orphans_as_foreign, decide_orphans
from gpudev.planning.decisions import Decisions
from gpudev.planning.reservations.reconcile_reservations import decide_running, decide_without_processor
from gpudev.planning.reservations.stale_requests import decide_max_wait, without_given_up
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import Cluster, ClusterState, ProcessorCordons
from gpudev.ports.leases import Lease, LeaseStore
from gpudev.ports.queue import MessageQueue, PlanningRecordStore, QueueMessage
from gpudev.ports.reservations import ReservationStore, UnreleasedView
from gpudev.ports.sessions import PersonalizationStore
from gpudev.ports.tracing import NO_TRACER, Tracer
from gpudev.processor.addon_reconciler import AddonReconciler
from gpudev.processor.cluster_publisher import ClusterPublisher
from gpudev.processor.disk_attachment import DiskAttacher
from gpudev.processor.disk_worker import DiskWorker
from gpudev.processor.effect_runner import EffectRunner
from gpudev.processor.expiry_report import ExpiryReport
from gpudev.processor.queue_planner import QueuePlanner
from gpudev.processor.telemetry import log_changes, request_ids_of, trace_changes
from gpudev.processor.workers import Wakeup
from gpudev.settings import TimingSettings

# How long the loop rests after a cycle, so that other tasks run and wake-ups share a cycle. Pure.
#
# Each cycle is followed by a rest of three times its length; waiting for a wake-up counts as rest. (While a cycle waits
# for the database, the database is busy.) Some debt is allowed: a single long cycle does not delay the next wake-up,
# while under constant load the loop works a quarter of the time.


_REST_PER_CYCLE = 3.0
_LARGEST_DEBT_S = 0.15
_LONGEST_REST_S = 0.4


class DutyCycle:
    def __init__(self) -> None:
        self._owed = 0.0
        self._ended: float | None = None

    def rest_after(self, began: float, ended: float) -> float:
        """Seconds to rest after a cycle from `began` to `ended` (monotonic clock)."""
        rested = 0.0 if self._ended is None else began - self._ended
        self._owed = max(0.0, self._owed - rested) + _REST_PER_CYCLE * (ended - began)
        self._owed = min(self._owed, _LARGEST_DEBT_S + _LONGEST_REST_S)
        self._ended = ended
        return max(0.0, self._owed - _LARGEST_DEBT_S)


# Messages that wake the loop: which of them a cycle has examined, and which failed.


log = structlog.get_logger(__name__)
MESSAGES_PER_CYCLE = 200


class ReservationMessages:
    def __init__(self, queue: MessageQueue, reservations: ReservationStore) -> None:
        self._queue = queue
        self._reservations = reservations

    async def read(self) -> list[QueueMessage]:
        return await self._queue.read(RESERVATION_QUEUE, MESSAGE_LEASE, MESSAGES_PER_CYCLE)

    async def sort_examined(
        self,
        messages: Sequence[QueueMessage],
        state: ClusterState | None,
        reservations: Sequence[Reservation],
        broken: Mapping[str, str],
        now: datetime,
    ) -> list[int]:
        """Messages that this cycle has examined. One that names nothing, or whose type could not be planned, has
        failed. While the cluster cannot be observed, nothing counts as examined, and messages are read again."""
        if state is None:
            return []
        types = {r.reservation_id: r.gpu_type for r in reservations if r.status.is_waiting}
        requests = request_ids_of(reservations) if messages else {}
        examined = []
        for message in messages:
            reservation_id = _find_reservation_id(message)
            error = broken.get(types.get(reservation_id, "")) if reservation_id is not None else None
            if reservation_id is None or (reservation_id not in types and not await self._exists(reservation_id)):
                error = "the message has no reservation id"
            if error is None:
                examined.append(message.msg_id)
                _log_taken(message, requests.get(reservation_id, {}) if reservation_id is not None else {})
            elif await self._queue.fail(RESERVATION_QUEUE, message, error, now=now):
                log.error("message.dead_lettered", msg_id=message.msg_id, error=error)
                instruments.dead_lettered.labels(RESERVATION_QUEUE).inc()
        return examined

    async def _exists(self, reservation_id: ReservationId) -> bool:
        return await self._reservations.find_reservation(reservation_id) is not None


def _log_taken(message: QueueMessage, request: Mapping[str, str]) -> None:
    """Logs the id of the causing request: of a later request it is in the message, of the submit in the row."""
    body = message.body
    known = {name: body[name] for name in ("cause", "request_id") if isinstance(body.get(name), str)}
    log.info("message.taken", reservation_id=body.get("reservation_id"), **{**request, **known})


def _find_reservation_id(message: QueueMessage) -> ReservationId | None:
    try:
        return ReservationId(UUID(str(message.body.get("reservation_id"))))
    except (ValueError, AttributeError):
        return None


_PUBLISH_AT_LEAST_EVERY = timedelta(seconds=1)
_LET_LAUNCH_S = 0.05


class Processor:
    def __init__(
        self,
        *,
        reservations: ReservationStore,
        unreleased: UnreleasedView,
        queue: MessageQueue,
        leases: LeaseStore,
        cluster: Cluster,
        cordons: ProcessorCordons,
        queue_planner: QueuePlanner,
        publisher: ClusterPublisher,
        planning_records: "PlanningRecorder",
        clock: Clock,
        timing: TimingSettings,
        addons: AddonReconciler,
        personalizations: PersonalizationStore,
        disks: DiskWorker | None = None,
        disk_attacher: DiskAttacher | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._tracer = tracer
        self._reservations = reservations
        self._unreleased = unreleased
        self._messages = ReservationMessages(queue, reservations)
        self._leases = leases
        self._cluster = cluster
        self._cordons = cordons
        self._queue_planner = queue_planner
        self._publisher = publisher
        self._planning_records = planning_records
        self._clock = clock
        self._timing = timing
        self.watchdog = LoopWatchdog()
        self._woken = Wakeup()
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._lease: Lease | None = None
        self._orphans_since: dict[ReservationId, datetime] = {}
        self._next_at: datetime | None = None
        self._published_at: datetime | None = None
        self._zones: dict[str, str | None] = {}
        self.disks = disks
        self.addons = addons
        if disks is not None:
            disks.on_progress = self.wake
        self.effects = EffectRunner(
            cluster,
            reservations,
            clock,
            timing,
            self.wake,
            disk_attacher=disk_attacher,
            addons=addons,
            personalizations=personalizations,
            tracer=tracer,
            zone_of=self._zone_of,
        )

    def wake(self) -> None:
        """Something may have changed. Cheap; may be called too often."""
        self._woken.set()
        self.addons.wake()

    async def run(self) -> None:
        """Until cancelled. Dev servers keep running."""
        helpers = [
            asyncio.create_task(self._keep_lease(), name="lease"),
            asyncio.create_task(self._watch_cluster(), name="watch"),
            asyncio.create_task(self.addons.run(lambda: self.is_planning, self.watchdog), name="addons"),
        ]
        if self.disks is not None:
            helpers.append(asyncio.create_task(self.disks.run(lambda: self.is_planning, self.watchdog), name="disks"))
        pacing = DutyCycle()
        try:
            while True:
                self.watchdog.beat("planning")
                await self._wait()
                began = time.monotonic()
                await self._cycle_or_log()
                rest = pacing.rest_after(began, time.monotonic())
                if rest:
                    await asyncio.sleep(rest)
        finally:
            self.watchdog.forget("planning")
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self.effects.cancel()
            if self.disks is not None:
                await self.disks.close()
            await self.addons.close()
            if self._lease is not None:
                with contextlib.suppress(Unavailable):
                    await self._leases.release(self._lease)

    async def acquire_lease(self) -> bool:
        """Takes or keeps the lease. A new lease triggers a cycle at once."""
        before = self._lease
        self._lease = await self._leases.acquire(PLANNING_LEASE, self._holder, self._timing.lease_ttl)
        if self._lease is not None and self._lease != before:
            log.info("lease.taken", holder=self._holder, epoch=self._lease.epoch)
            self.wake()
        elif self._lease is None and before is not None:
            log.warning("lease.lost", holder=self._holder)
        return self._lease is not None

    async def expire(self, rounds: int = 5, *, dry_run: bool = False) -> ExpiryReport | None:
        """For a system without a running processor: expires, warns and tears down, starts nothing. None: a processor is
        running, and does this itself."""
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
                await self.effects.wait_idle()
                if not is_more_to_do:
                    break
            left = [row for row in await self._unreleased.refresh() if row.needs_teardown]
            report.unfinished = [short_id(row.reservation_id) for row in left]
        finally:
            await self._leases.release(lease)
            self._lease = None
        return report

    async def _expire_once(self, lease: Lease | None, report: ExpiryReport) -> bool:
        """True: there may be more to do. `lease` None: only report."""
        state = await self._observe()
        report.errors = [] if state is not None else ["the cluster could not be observed; only expiry was decided"]
        reservations = await self._unreleased.refresh()
        now = self._clock.now()
        decisions = decide_without_processor(reservations, state, now, self._timing)
        done = frozenset(change.reservation_id for change in decisions.changes)
        if lease is not None:
            done = await self._write(lease, decisions, [], now)
            log_changes(decisions, done, reservations)
            self._act(decisions, done)
        report.add_decisions(decisions, done)
        if state is not None:
            await self._expire_orphans(state, reservations, now, report, act=lease is not None)
        return bool(decisions.changes or decisions.teardowns)

    async def _expire_orphans(
        self,
        state: ClusterState,
        reservations: Sequence[Reservation],
        now: datetime,
        report: ExpiryReport,
        *,
        act: bool,
    ) -> None:
        """The grace period spans runs, so first observations are stored."""
        known = await self._planning_records.load_orphans()
        orphans = decide_orphans(state.servers, _server_owners(reservations), known, now, self._timing.orphan_grace)
        report.orphans = [str(each) for each in orphans.report]
        report.removed = [*dict.fromkeys([*report.removed, *(str(each) for each in orphans.remove)])]
        if act:
            await self._planning_records.save_orphans(orphans.first_observed)
            for reservation_id in orphans.remove:
                self.effects.remove_orphan(reservation_id)

    @property
    def is_planning(self) -> bool:
        return self._lease is not None

    async def run_cycle(self) -> None:
        """Observe, decide, write, then start the effects."""
        lease = self._lease
        if lease is None:
            return
        messages = await self._messages.read()
        state = await self._observe()
        reservations = await self._unreleased.refresh()
        if state is not None:
            state = count_orphans_as_foreign(state, _server_owners(reservations))
        now = self._clock.now()
        await self._queue_planner.prepare(lease, now)
        decisions = decide_running(reservations, state, now, self._timing, self.effects.is_launch_incomplete)
        given_up = decide_max_wait(reservations, now)
        decisions.add(given_up)
        broken = await self._decide_queues(without_given_up(reservations, given_up), state, now, decisions)
        examined = await self._messages.sort_examined(messages, state, reservations, broken, now)
        done = await self._write(lease, decisions, examined, now)
        log_changes(decisions, done, reservations)
        trace_changes(self._tracer, decisions.changes, done, reservations, now)
        self._act(decisions, done)
        for reservation_id, message in await self._cordons.take_notices():
            self.effects.send_message(reservation_id, message)
        if state is not None:
            self._sweep_orphans(state, reservations, now)
            if not self._defers_publishing(decisions, now):
                await self._queue_planner.publish(lease)
                await self._planning_records.record_examined(lease, reservations, broken, now)
                await self._publisher.publish(
                    lease, state, await self._current_reservations(reservations, bool(done)), now
                )
                self._published_at = now
        self._next_at = decisions.next_at
        if len(messages) == MESSAGES_PER_CYCLE or (done and not decisions.starts):
            self.wake()
        elif done:
            # Another cycle now would only delay the launches, which wake the loop themselves.
            asyncio.get_running_loop().call_later(_LET_LAUNCH_S, self.wake)

    def _defers_publishing(self, decisions: Decisions, now: datetime) -> bool:
        """Launches go first: the cycle right after them publishes. Limited, in case many start."""
        recently = self._published_at is not None and timedelta(0) <= now - self._published_at < _PUBLISH_AT_LEAST_EVERY
        return bool(decisions.starts) and recently

    async def _decide_queues(
        self, reservations: Sequence[Reservation], state: ClusterState | None, now: datetime, decisions: Decisions
    ) -> dict[str, str]:
        if state is None:
            return {}
        await self._queue_planner.load_zone_constraints(reservations, state, now)
        with instruments.decide_seconds.time():
            if self._queue_planner.is_long(reservations):  # in a thread: heartbeats and effects continue
                return await asyncio.to_thread(self._queue_planner.decide, reservations, state, now, decisions)
            return self._queue_planner.decide(reservations, state, now, decisions)

    async def _write(
        self, lease: Lease, decisions: Decisions, examined: list[int], now: datetime
    ) -> frozenset[ReservationId]:
        """All decisions in one transaction. If the database rejects one, each by itself, so that it does not block the
        others (then no message is acknowledged: unwritten decisions do not count as examined)."""
        try:
            return await self._reservations.apply_decisions(
                lease,
                decisions.changes,
                decisions.updates,
                examined,
                now=now,
                teardown_margin=self._timing.teardown_margin,
                estimates=decisions.estimates,
            )
        except (LeaseLost, Unavailable):
            raise
        except Exception:
            log.exception("write.broken", changes=len(decisions.changes))
        done: set[ReservationId] = set()
        for change in decisions.changes:
            try:
                done |= await self._reservations.apply_decisions(
                    lease, [change], {}, [], now=now, teardown_margin=self._timing.teardown_margin
                )
            except (LeaseLost, Unavailable):
                raise
            except Exception:
                log.exception("change.broken", reservation_id=str(change.reservation_id))
        return frozenset(done)

    async def _current_reservations(self, reservations: Sequence[Reservation], changed: bool) -> Sequence[Reservation]:
        return await self._unreleased.refresh() if changed else reservations

    async def _observe(self) -> ClusterState | None:
        try:
            state = await self._cluster.observe()
        except Unavailable as error:
            log.warning("cluster.unavailable", error=str(error))
            instruments.observations_failed.inc()
            return None
        self._zones = {node.name: node.zone for node in state.nodes}
        return replace(state, nodes=apply_cordons(state.nodes, await self._cordons.cordons()))

    def _zone_of(self, reservation: Reservation) -> str | None:
        """The zone of its first member, which has the disk."""
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
                self.effects.send_message(reservation_id, message)

    def _sweep_orphans(self, state: ClusterState, reservations: Sequence[Reservation], now: datetime) -> None:
        orphans = decide_orphans(
            state.servers, _server_owners(reservations), self._orphans_since, now, self._timing.orphan_grace
        )
        for reservation_id in orphans.report:
            if reservation_id not in self._orphans_since:
                log.warning("orphan.found", reservation_id=str(reservation_id))
        self._orphans_since = dict(orphans.first_observed)
        instruments.orphans.set(len(self._orphans_since))
        for reservation_id in orphans.remove:
            self.effects.remove_orphan(reservation_id)

    async def _wait(self) -> None:
        """For a wake-up, the next time-based decision, or the sweep."""
        timeout = self._timing.sweep_every
        if self._next_at is not None:
            timeout = max(timedelta(0), min(timeout, self._next_at - self._clock.now()))
        await self._woken.take(timeout)

    async def _cycle_or_log(self) -> None:
        """Catches everything: logs, counts, and the next sweep retries."""
        if self._lease is None:
            return
        try:
            with instruments.cycle_seconds.time():
                await self.run_cycle()
            result = "done"
        except LeaseLost:
            self._lease = None
            log.warning("lease.lost", holder=self._holder)
            result = "lease_lost"
        except Unavailable as error:
            log.warning("cycle.unavailable", error=str(error))
            result = "unavailable"
            await asyncio.sleep(0.2)
        except Exception:
            log.exception("cycle.broken")
            result = "broken"
            await asyncio.sleep(1)
        instruments.cycles.labels(result).inc()

    async def _keep_lease(self) -> None:
        while True:
            try:
                await self.acquire_lease()
            except Unavailable as error:
                # Unknown is not lost: writes are fenced by the epoch, and the next heartbeat decides.
                log.warning("lease.unavailable", error=str(error))
            except Exception:
                log.exception("lease.broken")
            self.watchdog.beat("lease")
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


def _server_owners(reservations: Sequence[Reservation]) -> set[ReservationId]:
    """Reservations that may have a dev server: those with an allocation."""
    return {reservation.reservation_id for reservation in reservations if reservation.shares}


# Records which requests the planner has examined, to tell stale requests from queued ones. Written rarely: a resolution
# of minutes is enough.


_RECORD_EVERY = timedelta(seconds=20)


class PlanningRecorder:
    def __init__(self, store: PlanningRecordStore) -> None:
        self._store = store
        self._last: tuple[int, datetime] | None = None

    async def record_examined(
        self, lease: Lease, reservations: Sequence[Reservation], broken: Collection[str], now: datetime
    ) -> None:
        """`broken`: types that could not be planned, so their requests were not examined."""
        if self._last is not None:
            epoch, at = self._last
            if epoch == lease.epoch and timedelta(0) <= now - at < _RECORD_EVERY:
                return
        by_type: defaultdict[str, list[int]] = defaultdict(list)
        for row in reservations:
            if row.status.is_waiting and row.gpu_type not in broken:
                by_type[row.gpu_type].append(row.seq)
        await self._store.record_examined(lease, by_type, now)
        self._last = (lease.epoch, now)

    async def load_orphans(self) -> Mapping[ReservationId, datetime]:
        return await self._store.load_orphans()

    async def save_orphans(self, first_observed: Mapping[ReservationId, datetime]) -> None:
        await self._store.save_orphans(first_observed)
