"""Disk worker: carries out disk operations, one task per operation.

Rows are authoritative: a message or notification only means that something may be due. It decides nothing about disks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from gpudev.domain.disks.contents import Contents
from gpudev.domain.disks.operations import OperationId, RecordedSnapshotId, SnapshotRecord
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.queue import DISK_QUEUE, MESSAGE_LEASE
from gpudev.keyed_tasks import KeyedTasks
from gpudev.metrics import instruments
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.ports.clock import Clock
from gpudev.ports.disks import ContentsStore
from gpudev.ports.queue import MessageQueue
from gpudev.processor.workers import WorkLoop, log_errors
from gpudev.workflows.disks.operations import DiskOperations

log = structlog.get_logger(__name__)
_AT_ONCE = 16
_SWEEP_EVERY = timedelta(seconds=30)
_TIDY_EVERY = timedelta(minutes=10)
_PAUSE = timedelta(milliseconds=50)
_WHILE_WORKING = timedelta(seconds=1)
_SETTLED_WITHIN_S = 2.0
"""Longer operations continue in the background."""
_SNAPSHOTS = "snapshots"
_MESSAGES = 200


class DiskWorker:
    def __init__(
        self,
        operations: DiskOperations,
        queue: MessageQueue,
        contents: ContentsStore,
        *,
        contents_of: Callable[[str], Awaitable[Contents]] | None = None,
        settle_every: timedelta = timedelta(seconds=15),
    ) -> None:
        """`contents_of`: lists a complete snapshot, by the cloud's id, if the cloud can."""
        self.operations = replace(operations, on_complete=self._save_contents)
        self._queue = queue
        self._contents = contents
        self._contents_of = contents_of
        self._settle_every = settle_every
        self._awaited: set[OperationId] = set()
        self._expected: set[OperationId | None] = set()
        self._loop = WorkLoop("disks", self.run_round, rest=_WHILE_WORKING, pause=_PAUSE)
        self._tasks = KeyedTasks[OperationId, bool]("disk operation", _AT_ONCE, self._ended)
        self._snapshot_tasks = KeyedTasks[str, None]("settling")
        self._settle_at: datetime | None = None
        self._tidy_at: datetime | None = None
        self._unreadable: set[RecordedSnapshotId] = set()
        """Snapshots that cannot be listed."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called when an awaited operation has changed."""

    @property
    def _clock(self) -> Clock:
        return self.operations.clock

    # --- for callers that await one --------------------------------------------------------------------------------

    def expect_completed(self, operation_id: OperationId) -> None:
        """An operation that is written as completed: its notification is ignored."""
        self._expected.add(operation_id)

    async def advance(self, operation_id: OperationId, within_s: float) -> None:
        """Advances it until it ends, must wait, or the time is up. Then it continues in the background, and
        `on_progress` is called."""
        task = self._begin(operation_id)
        self._awaited.add(operation_id)
        await asyncio.wait({task}, timeout=within_s)

    def stop_awaiting(self, operation_id: OperationId) -> None:
        """No caller waits for it any more."""
        self._awaited.discard(operation_id)

    def on_notification(self, payload: str | None) -> None:
        """`payload`: the changed operation. None: any."""
        operation_id = None if payload is None else OperationId(UUID(payload))
        if operation_id in self._expected:
            self._expected.discard(operation_id)
            return
        if operation_id is None or operation_id in self._awaited:
            self.on_progress()
        if operation_id is None or operation_id not in self._tasks:
            self._loop.wake()

    # --- the loop --------------------------------------------------------------------------------------------------

    async def run(self, is_ours: Callable[[], bool], watchdog: LoopWatchdog) -> None:
        """Until cancelled. `is_ours`: whether this process holds the lease."""
        await self._loop.run(is_ours, watchdog)

    async def run_round(self) -> timedelta:
        """Begins what is due; returns the time until the next round."""
        now = self._clock.now()
        await self._read_messages(now)
        for operation_id in await self.operations.store.due(now):
            self._begin(operation_id)
        if _SNAPSHOTS not in self._snapshot_tasks and (self._settle_at is None or self._settle_at <= now):
            await self._begin_settle()
        if self._tidy_at is None or self._tidy_at <= now:
            await self.operations.request_upkeep()
            await self._contents.delete_removed_contents()
            self._tidy_at = now + _TIDY_EVERY
        return await self._until_next(now)

    async def wait_idle(self) -> None:
        """Until no task is left (tests, a clean stop)."""
        await self._tasks.wait_idle()
        await self._snapshot_tasks.wait_idle()

    async def close(self) -> None:
        await self._tasks.close()
        await self._snapshot_tasks.close()

    async def _until_next(self, now: datetime) -> timedelta:
        moments = [now + _SWEEP_EVERY]
        if self._settle_at is not None:
            moments.append(self._settle_at)
        due = await self.operations.store.next_due()
        if due is not None:
            # What is due already has a task, whose end wakes this loop.
            moments.append(due if due > now else now + _WHILE_WORKING)
        return max(timedelta(0), min(moments) - now)

    async def _read_messages(self, now: datetime) -> None:
        """Acknowledges messages. The operations they name are found among those due."""
        messages = await self._queue.read(DISK_QUEUE, MESSAGE_LEASE, _MESSAGES)
        known = [message.msg_id for message in messages if "operation_id" in message.body]
        for message in messages:
            if message.msg_id not in known and await self._queue.fail(
                DISK_QUEUE, message, "the message has no operation id", now=now
            ):
                log.error("message.dead_lettered", msg_id=message.msg_id)
                instruments.dead_lettered.labels(DISK_QUEUE).inc()
        if known:
            await self._queue.acknowledge(DISK_QUEUE, known)

    async def _begin_settle(self) -> None:
        """In its own task: each check of a snapshot may take minutes if the cloud does not answer, and neither
        operations nor this loop (the watchdog would fire) may wait for that."""
        task = self._snapshot_tasks.start(_SNAPSHOTS, lambda: log_errors("snapshots", self._settle_snapshots(), None))
        await asyncio.wait({task}, timeout=_SETTLED_WITHIN_S)

    async def _settle_snapshots(self) -> None:
        now = self._clock.now()
        self._settle_at = now + self._settle_every
        settled = await self.operations.settle_snapshots()
        for error in settled.errors:
            log.warning("snapshot.unavailable", error=error)
        await self._contents.assign_reported_contents(now=now)
        if self._contents_of is not None:
            await self._save_contents(await self._contents.list_snapshots_without_contents())
        if self._settle_at is not None:  # else an operation ended meanwhile and may have begun another snapshot
            self._settle_at = now + (self._settle_every if settled.left else _TIDY_EVERY)

    async def _save_contents(self, records: Sequence[SnapshotRecord]) -> None:
        """Failures are retried when snapshots are settled next."""
        if self._contents_of is None:
            return
        for record in records:
            if record.snapshot_id in self._unreadable or record.cloud_id is None:
                continue
            try:
                await self._contents.save_contents(
                    record.snapshot_id, await self._contents_of(record.cloud_id), now=self._clock.now()
                )
            except Unavailable as error:
                log.warning("contents.unavailable", snapshot=record.cloud_id, error=str(error))
            except ClusterError as error:
                self._unreadable.add(record.snapshot_id)
                log.warning("contents.rejected", snapshot=record.cloud_id, error=str(error))

    def _begin(self, operation_id: OperationId) -> "asyncio.Task[bool]":
        return self._tasks.start(operation_id, lambda: self._advance(operation_id))

    async def _advance(self, operation_id: OperationId) -> bool:
        work = self.operations.advance(operation_id)
        return await log_errors("disk_operation", work, False, operation_id=str(operation_id))

    def _ended(self, operation_id: OperationId, task: "asyncio.Task[bool]") -> None:
        self._settle_at = None
        self._loop.wake()
        # If it only has to wait, its callers are not woken: they would retry at once.
        if operation_id in self._awaited and not task.cancelled() and task.result():
            self.on_progress()
