"""Disk operations, carried out: load, observe, decide, call the cloud, write; until there is something to wait for.

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
"""Of one operation in one go: one more than any disk has snapshots, and an end to a mistake of ours."""
_MOST_STALE = 5


@dataclass(frozen=True, slots=True)
class SettledSnapshots:
    """What became of snapshots that nobody waits for."""

    count: int
    errors: tuple[str, ...] = ()
    """Why some could not be looked at."""
    left: int = 0
    """How many are still not finished."""


@dataclass(frozen=True, slots=True)
class DiskOperations:
    store: DiskOperationStore
    cloud: CloudDisks
    clock: Clock
    settings: DiskSettings = field(default_factory=DiskSettings)
    by: str = "processor"
    appears_within: timedelta = timedelta(0)
    """So long the cloud may not show what it has made."""
    on_complete: Callable[[Sequence[SnapshotRecord]], Awaitable[None]] | None = None
    """Hears of snapshots that are complete, before anybody hears that the operation that took them is over."""

    async def request_operation(
        self, user_id: UserId, request: DiskRequest, *, key: str | None = None
    ) -> Operation | None:
        """Have it done. `key`: asking again with the same one gives the first answer. None: there is nothing to do
        (only what the system asks for by itself)."""
        now = self.clock.now()
        operation_id = OperationId(uuid4())

        def decide(facts: UserDisks) -> OperationChanges | None:
            return accept_request(request, facts, operation_id, now, self.settings)

        return await self.store.accept(user_id, decide, now=now, by=self.by, key=key)

    async def advance(self, operation_id: OperationId) -> bool:
        """One operation, until it is over or has to wait. True: something happened to it."""
        moved = stale = 0
        while moved < _MOST_STEPS and stale < _MOST_STALE:
            facts = await self.store.load_facts(operation_id)
            if facts is None or not _is_due(facts.operation, self.clock.now()):
                break
            try:
                changes = await self._run_step(facts)
                await self.store.write_changes(changes, now=self.clock.now(), by=self.by)
            except Stale:  # somebody else did something; it is looked at again
                stale += 1
                continue
            moved += changes.operation.next_attempt_at is None
            if changes.operation.state.is_finished:
                break
            complete = [one for one in changes.snapshots if one.status is SnapshotStatus.COMPLETED]
            if complete and self.on_complete is not None:
                await self.on_complete(complete)
        return moved > 0

    async def settle_snapshots(self) -> SettledSnapshots:
        """Snapshots that nobody waits for: whether the cloud has finished them. One that cannot be seen stops no
        other, and is looked at again."""
        settled, errors = 0, []
        unsettled = await self.store.list_pending_snapshots()
        for record in unsettled:
            assert record.cloud_id is not None  # of every pending one
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
        """Ask for what time has decided: old snapshots go, and disks whose time to be restored is over; disks that have
        been in use for long are kept."""
        now = self.clock.now()
        purges = await self.store.list_deleted_before(now - self.settings.retention)
        prunes = await self.store.list_with_snapshots()
        every = self.settings.snapshot_every
        in_use = await self.store.list_without_snapshot_since(now - every) if every else []
        requests: Iterable[tuple[DiskMaintenance | DiskInUse, DiskRequest]] = (
            *((one, SnapshotDiskInUse(one.disk_id, one.reservation_id)) for one in in_use),
            *((one, PurgeDisk(one.disk_id)) for one in purges),
            *((one, PruneDisk(one.disk_id)) for one in prunes),
        )
        asked = [await self.request_operation(one.user_id, request) for one, request in requests]
        return [operation for operation in asked if operation is not None]

    async def _run_step(self, facts: OperationFacts) -> OperationChanges:
        call: CloudCall | None = None
        try:
            seen = await self._query_cloud(plan_cloud_query(facts))
            if (unseen := find_not_yet_visible(facts, seen, self.clock.now() - self.appears_within)) is not None:
                raise Unavailable(unseen)
            step = next_step(facts, seen, self.clock.now(), self.settings)
            if isinstance(step, WriteRecords | WaitForCloud | FinishOperation | FailOperation):
                return conclude_step(facts, step, self.clock.now())
            call = step
            answer = await self._call_cloud(call)
            return after_call(facts, seen, call, answer, now=self.clock.now(), settings=self.settings)
        except Unavailable as error:
            return after_no_answer(facts, str(error), self.clock.now())
        except ClusterError as error:
            if call is None:  # a look that is refused tells nothing about what there is
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
