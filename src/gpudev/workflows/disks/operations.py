"""Carries out disk operations: load, observe, decide, call the cloud, write, until a step must wait.

It may be stopped anywhere and run by several processes: calls to the cloud are idempotent, and writes are guarded. It
decides nothing.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import assert_never
from uuid import uuid4

from gpudev.domain.disks.operations import (
    DiskRequest,
    DiskSettings,
    Operation,
    OperationChanges,
    OperationFacts,
    OperationId,
    PruneDisk,
    PurgeDisk,
    SnapshotDiskInUse,
    SnapshotRecord,
    SnapshotStatus,
    UserDisks,
)
from gpudev.domain.errors import ClusterError, Stale, Unavailable
from gpudev.domain.ids import UserId
from gpudev.planning.disks.acceptance import accept_request
from gpudev.planning.disks.operation_results import (
    CloudCall,
    CloudQuery,
    CloudState,
    EnsureSnapshot,
    EnsureVolume,
    FailOperation,
    FinishOperation,
    GrowVolume,
    RemoveSnapshot,
    RemoveVolume,
    TagVolume,
    WaitForCloud,
    WriteRecords,
    after_call,
    after_no_answer,
    after_rejection,
    conclude_step,
    update_snapshot_record,
)
from gpudev.planning.disks.operation_steps import find_not_yet_visible, next_step, plan_cloud_query
from gpudev.ports.clock import Clock
from gpudev.ports.cloud import CloudDisks, Snapshot, Volume
from gpudev.ports.disks import DiskInUse, DiskMaintenance, DiskOperationStore

_MOST_STEPS = 1000
"""Per call of `advance`: more than any disk has snapshots; stops an endless loop."""
_MOST_STALE = 5


@dataclass(frozen=True, slots=True)
class SettledSnapshots:
    """Results for snapshots that no operation waits for."""

    count: int
    errors: tuple[str, ...] = ()
    """Errors of those that could not be read."""
    left: int = 0
    """How many are still incomplete."""


@dataclass(frozen=True, slots=True)
class DiskOperations:
    store: DiskOperationStore
    cloud: CloudDisks
    clock: Clock
    settings: DiskSettings = field(default_factory=DiskSettings)
    by: str = "processor"
    appears_within: timedelta = timedelta(0)
    """How long the cloud may not list a new object."""
    on_complete: Callable[[Sequence[SnapshotRecord]], Awaitable[None]] | None = None
    """Called with complete snapshots, before their operation is reported as ended."""

    async def request_operation(
        self, user_id: UserId, request: DiskRequest, *, key: str | None = None
    ) -> Operation | None:
        """Requests an operation. `key`: makes it idempotent. None: nothing to do (only for requests of the system)."""
        now = self.clock.now()
        operation_id = OperationId(uuid4())

        def decide(facts: UserDisks) -> OperationChanges | None:
            return accept_request(request, facts, operation_id, now, self.settings)

        return await self.store.accept(user_id, decide, now=now, by=self.by, key=key)

    async def advance(self, operation_id: OperationId) -> bool:
        """Advances one operation until it ends or must wait. True: it changed."""
        moved = stale = 0
        while moved < _MOST_STEPS and stale < _MOST_STALE:
            facts = await self.store.load_facts(operation_id)
            if facts is None or not _is_due(facts.operation, self.clock.now()):
                break
            try:
                changes = await self._run_step(facts)
                await self.store.write_changes(changes, now=self.clock.now(), by=self.by)
            except Stale:  # changed by another writer; read it again
                stale += 1
                continue
            moved += changes.operation.next_attempt_at is None
            if changes.operation.state.is_finished:
                break
            complete = [each for each in changes.snapshots if each.status is SnapshotStatus.COMPLETED]
            if complete and self.on_complete is not None:
                await self.on_complete(complete)
        return moved > 0

    async def settle_snapshots(self) -> SettledSnapshots:
        """Checks whether the cloud has completed snapshots that no operation waits for. One that cannot be read does
        not stop the others and is retried."""
        settled, errors = 0, []
        unsettled = await self.store.list_pending_snapshots()
        for record in unsettled:
            assert record.cloud_id is not None  # set for every pending one
            try:
                found = await self.cloud.find_snapshot(record.cloud_id)
            except (Unavailable, ClusterError) as error:
                errors.append(f"snapshot {record.cloud_id}: {error}")
                continue
            if found is None and record.created_at > self.clock.now() - self.appears_within:
                continue
            new = update_snapshot_record(record, CloudState(snapshots={record.cloud_id: found}))
            settled += new != record and await self.store.finish_snapshot(
                new, now=self.clock.now(), event=new.problem_note
            )
        return SettledSnapshots(settled, tuple(errors), len(unsettled) - settled)

    async def request_upkeep(self) -> list[Operation]:
        """Requests what is due: pruning of old snapshots, purging of deleted disks, snapshots of disks in use for
        long."""
        now = self.clock.now()
        purges = await self.store.list_deleted_before(now - self.settings.retention)
        prunes = await self.store.list_with_snapshots()
        every = self.settings.snapshot_every
        in_use = await self.store.list_without_snapshot_since(now - every) if every else []
        requests: Iterable[tuple[DiskMaintenance | DiskInUse, DiskRequest]] = (
            *((each, SnapshotDiskInUse(each.disk_id, each.reservation_id)) for each in in_use),
            *((each, PurgeDisk(each.disk_id)) for each in purges),
            *((each, PruneDisk(each.disk_id)) for each in prunes),
        )
        operations = [await self.request_operation(each.user_id, request) for each, request in requests]
        return [operation for operation in operations if operation is not None]

    async def _run_step(self, facts: OperationFacts) -> OperationChanges:
        call: CloudCall | None = None
        try:
            cloud_state = await self._query_cloud(plan_cloud_query(facts))
            if (
                invisible := find_not_yet_visible(facts, cloud_state, self.clock.now() - self.appears_within)
            ) is not None:
                raise Unavailable(invisible)
            step = next_step(facts, cloud_state, self.clock.now(), self.settings)
            if isinstance(step, WriteRecords | WaitForCloud | FinishOperation | FailOperation):
                return conclude_step(facts, step, self.clock.now())
            call = step
            answer = await self._call_cloud(call)
            return after_call(facts, cloud_state, call, answer, now=self.clock.now(), settings=self.settings)
        except Unavailable as error:
            return after_no_answer(facts, str(error), self.clock.now())
        except ClusterError as error:
            if call is None:  # a rejected query says nothing about what exists
                return after_no_answer(facts, str(error), self.clock.now())
            return after_rejection(facts, call, str(error), self.clock.now())

    async def _query_cloud(self, query: CloudQuery) -> CloudState:
        return CloudState(
            {volume_id: await self.cloud.find_volume(volume_id) for volume_id in sorted(query.volumes)},
            {snapshot_id: await self.cloud.find_snapshot(snapshot_id) for snapshot_id in sorted(query.snapshots)},
        )

    async def _call_cloud(self, call: CloudCall) -> Volume | Snapshot | None:
        match call:
            case EnsureVolume():
                return await self.cloud.ensure_volume(
                    str(call.token),
                    size_gb=call.size_gb,
                    zone=call.zone,
                    tags=call.tags,
                    from_snapshot=call.from_snapshot,
                )
            case EnsureSnapshot():
                return await self.cloud.ensure_snapshot(str(call.record.snapshot_id), call.record.volume_id, call.tags)
            case GrowVolume():
                return await self.cloud.grow_volume(call.volume_id, call.size_gb)
            case TagVolume():
                await self.cloud.tag_volume(call.volume_id, call.tags)
            case RemoveVolume():
                await self.cloud.remove_volume(call.volume_id)
            case RemoveSnapshot():
                await self.cloud.remove_snapshot(call.cloud_id)
            case _:
                assert_never(call)
        return None


def _is_due(operation: Operation, now: datetime) -> bool:
    return not operation.state.is_finished and (operation.next_attempt_at is None or operation.next_attempt_at <= now)
