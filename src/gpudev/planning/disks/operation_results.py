"""Results of a disk operation's steps, and the changes that follow from them.

A step calls the cloud, writes records first, waits, finishes or fails. The cloud's answer, rejection or silence becomes
changes of the operation, its disk, snapshots and volumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never
from uuid import UUID

from gpudev.domain.backoff import backoff
from gpudev.domain.disks.operations import (
    DiskSettings,
    DiskState,
    Operation,
    OperationChanges,
    OperationFacts,
    OperationKind,
    OperationState,
    SnapshotRecord,
    SnapshotStatus,
    VolumeRecord,
    VolumeStatus,
)
from gpudev.ports.cloud import Snapshot, SnapshotState, Volume

MAX_REJECTIONS = 3
"""Give up after this many rejections: a limit or a passing state has changed by then, or a person must act. Calls
without an answer are retried indefinitely."""
_LONGEST_TEXT = 2000
_FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=5)
"""The longest pause between two attempts of a step. Short, so that operations resume soon after an outage."""


@dataclass(frozen=True, slots=True)
class CloudQuery:
    """What must be read before a step is decided, by the cloud's ids."""

    volumes: frozenset[str] = frozenset()
    snapshots: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CloudState:
    """What was read. None: the cloud has no such object."""

    volumes: Mapping[str, Volume | None] = field(default_factory=dict)
    snapshots: Mapping[str, Snapshot | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnsureVolume:
    token: UUID
    size_gb: int
    zone: str
    tags: Mapping[str, str]
    from_snapshot: str | None
    """By the cloud's id."""


@dataclass(frozen=True, slots=True)
class EnsureSnapshot:
    record: SnapshotRecord
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GrowVolume:
    volume_id: str
    size_gb: int


@dataclass(frozen=True, slots=True)
class TagVolume:
    volume_id: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RemoveVolume:
    record: VolumeRecord
    volume_id: str


@dataclass(frozen=True, slots=True)
class RemoveSnapshot:
    record: SnapshotRecord
    cloud_id: str


CloudCall = EnsureVolume | EnsureSnapshot | GrowVolume | TagVolume | RemoveVolume | RemoveSnapshot


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """No call to the cloud; these records must be written before the next step."""

    step: str
    disk: DiskState | None = None
    snapshots: tuple[SnapshotRecord, ...] = ()
    volumes: tuple[VolumeRecord, ...] = ()
    event: str | None = None
    """A line of the disk's history."""


@dataclass(frozen=True, slots=True)
class WaitForCloud:
    until: datetime
    why: str


@dataclass(frozen=True, slots=True)
class FinishOperation:
    result: str
    disk: DiskState | None = None


@dataclass(frozen=True, slots=True)
class FailOperation:
    reason: str


OperationStep = CloudCall | WriteRecords | WaitForCloud | FinishOperation | FailOperation


def conclude_step(
    facts: OperationFacts, step: WriteRecords | WaitForCloud | FinishOperation | FailOperation, now: datetime
) -> OperationChanges:
    operation = facts.operation
    match step:
        case WriteRecords():
            going_on = _continue(operation, step.step)
            if operation.kind is OperationKind.CLONE and step.volumes:  # from a snapshot: the source may change again
                going_on = replace(going_on, blocks=frozenset({facts.disk.disk_id}))
            return OperationChanges(going_on, step.disk, step.snapshots, step.volumes, step.event)
        case WaitForCloud():
            state = OperationState.WAITING if facts.before is not None else OperationState.RUNNING
            waiting = replace(operation, state=state, step=step.why, next_attempt_at=step.until, attempts=0, error=None)
            return OperationChanges(waiting)
        case FinishOperation():
            return OperationChanges(
                _end(operation, OperationState.DONE, now, result=step.result[:_LONGEST_TEXT]),
                step.disk,
                event=_history_line(operation.kind, step.result),
            )
        case FailOperation():
            return _fail(facts, step.reason, now)
        case _:
            assert_never(step)


def after_call(
    facts: OperationFacts,
    cloud_state: CloudState,
    call: CloudCall,
    answer: Volume | Snapshot | None,
    *,
    now: datetime,
    settings: DiskSettings,
) -> OperationChanges:
    operation, disk = facts.operation, facts.disk
    match call:
        case EnsureVolume():
            assert isinstance(answer, Volume)
            return _volume_made(facts, call, answer)
        case EnsureSnapshot():
            assert isinstance(answer, Snapshot)
            return _snapshot_begun(facts, cloud_state, call, answer)
        case GrowVolume():
            assert isinstance(answer, Volume)
            again = _continue(operation, f"growing to {call.size_gb} GB")
            if answer.size_gb < call.size_gb:
                again = replace(again, next_attempt_at=now + settings.poll_every)
            return OperationChanges(again)
        case TagVolume():
            return conclude_step(facts, FinishOperation("done"), now)
        case RemoveVolume():
            retired = replace(call.record, status=VolumeStatus.REMOVED)
            unlinked = replace(disk, volume_id=None) if disk.volume_id == call.volume_id else None
            return OperationChanges(_continue(operation, "removed a volume"), unlinked, volumes=(retired,))
        case RemoveSnapshot():
            removed = replace(call.record, status=SnapshotStatus.REMOVED)
            return OperationChanges(_continue(operation, "removing snapshots"), snapshots=(removed,))
        case _:
            assert_never(call)


def after_rejection(facts: OperationFacts, call: CloudCall, error: str, now: datetime) -> OperationChanges:
    """The cloud rejected the call. That often passes (a limit, a volume that is being changed), so it is retried a few
    times."""
    operation = facts.operation
    again = _retry(operation, error, now)
    again = replace(again, rejections=operation.rejections + 1)
    if again.rejections < MAX_REJECTIONS:
        return OperationChanges(again)
    match call:
        case EnsureVolume() | GrowVolume():
            return _fail(facts, error, now)
        case EnsureSnapshot():
            failed = replace(call.record, status=SnapshotStatus.FAILED, error=error[:_LONGEST_TEXT])
            return OperationChanges(_continue(operation, "no snapshot could be taken"), snapshots=(failed,))
        case TagVolume():
            return conclude_step(
                facts, FinishOperation(f"done, but the volume still carries the old name: {error}"), now
            )
        case RemoveSnapshot():  # continue with the others
            refused = replace(call.record, error=error[:_LONGEST_TEXT])
            return OperationChanges(_continue(operation, "removing snapshots"), snapshots=(refused,))
        case RemoveVolume():
            if operation.kind in (OperationKind.PURGE, OperationKind.PRUNE):
                return _fail(facts, error, now)
            return OperationChanges(again)  # its purpose is achieved; the next pruning removes the rest
        case _:
            assert_never(call)


def after_no_answer(facts: OperationFacts, error: str, now: datetime) -> OperationChanges:
    """The result is unknown: retry indefinitely, with the error in the operation's row."""
    return OperationChanges(_retry(facts.operation, error, now))


def _volume_made(facts: OperationFacts, call: EnsureVolume, volume: Volume) -> OperationChanges:
    """The disk is on its new volume. The old one is retired if it is ours, else only unlinked."""
    operation, disk = facts.operation, facts.disk
    record = next(each for each in facts.volumes if each.token == call.token)
    made = replace(record, status=VolumeStatus.KEPT, volume_id=volume.volume_id, size_gb=volume.size_gb)
    replaced = tuple(
        replace(each, status=VolumeStatus.RETIRED, retired_by=operation.operation_id, saved_in=disk.saved_as)
        for each in facts.volumes
        if each.volume_id == disk.volume_id and each.status is VolumeStatus.KEPT and each.token != record.token
    )
    on_it = replace(
        disk,
        volume_id=volume.volume_id,
        zone=volume.zone or record.zone,
        size_gb=max(volume.size_gb, disk.size_gb or 0),
        saved_as=record.from_snapshot,
    )
    left = f" instead of {disk.volume_id}" if disk.volume_id is not None else ""
    event = f"on volume {volume.volume_id} in {on_it.zone}{left}"
    return OperationChanges(_continue(operation, "the volume is made"), on_it, volumes=(made, *replaced), event=event)


_STATUS = {
    SnapshotState.PENDING: SnapshotStatus.PENDING,
    SnapshotState.COMPLETED: SnapshotStatus.COMPLETED,
    SnapshotState.ERROR: SnapshotStatus.FAILED,
}


def _snapshot_begun(
    facts: OperationFacts, cloud_state: CloudState, call: EnsureSnapshot, snapshot: Snapshot
) -> OperationChanges:
    operation, disk, status = facts.operation, facts.disk, _STATUS[snapshot.state]
    record = replace(
        call.record,
        status=status,
        cloud_id=snapshot.snapshot_id,
        size_gb=snapshot.size_gb,
        error=(snapshot.error or "the cloud could not take it") if status is SnapshotStatus.FAILED else None,
        lacks=snapshot.lacks,
    )
    going_on = _continue(operation, "the snapshot is being taken")
    if operation.kind is OperationKind.SNAPSHOT:
        going_on = replace(going_on, blocks=frozenset())  # later writes are not part of it
    elif operation.kind is OperationKind.CLONE:
        going_on = replace(going_on, blocks=frozenset({disk.disk_id}))
    saved = None
    if status.is_usable and record.disk_id == disk.disk_id and _is_unwritten(facts, cloud_state):
        saved = replace(disk, saved_as=record.snapshot_id)
    problem = record.error or record.missing_note
    event = f"snapshot {snapshot.snapshot_id} ({record.why}){f': {problem}' if problem else ''}"
    return OperationChanges(going_on, saved, (record,), event=event if record.disk_id == disk.disk_id else None)


def _is_unwritten(facts: OperationFacts, cloud_state: CloudState) -> bool:
    """Whether no dev server could have written since the snapshot. A user's snapshot may be of a disk in use."""
    volume_id = facts.disk.volume_id
    volume = None if volume_id is None else cloud_state.volumes.get(volume_id)
    if volume is None or volume.attached_to:
        return False
    return facts.operation.kind is not OperationKind.SNAPSHOT or facts.disk.holder is None


def _fail(facts: OperationFacts, reason: str, now: datetime) -> OperationChanges:
    """Closes everything that was begun. A disk whose creation failed gives back its name and cannot be restored: it
    would be empty, and would hide a deleted disk of the same name."""
    operation, disk = facts.operation, facts.disk
    operation_id = operation.operation_id
    snapshots = tuple(
        replace(each, status=SnapshotStatus.FAILED, error=reason[:_LONGEST_TEXT])
        for each in facts.snapshots
        if each.operation_id == operation_id and each.status is SnapshotStatus.BEGINNING
    )
    volumes = tuple(
        replace(each, status=VolumeStatus.REMOVED)
        for each in facts.volumes
        if each.operation_id == operation_id and each.status is VolumeStatus.MAKING
    )
    is_unmade = operation.kind in (OperationKind.CREATE, OperationKind.CLONE) and disk.volume_id is None
    closed = replace(disk, is_deleted=True, deleted_at=now, purge_started_at=now) if is_unmade else None
    failed = _end(operation, OperationState.FAILED, now, error=reason[:_LONGEST_TEXT])
    return OperationChanges(failed, closed, snapshots, volumes, event=f"{operation.kind.label} failed: {reason}")


def _history_line(kind: OperationKind, result: str) -> str:
    """For the disk's history."""
    return result if result.startswith(kind.label) else f"{kind.label}: {result}"


def _continue(operation: Operation, step: str) -> Operation:
    return replace(
        operation,
        state=OperationState.RUNNING,
        step=step,
        attempts=0,
        rejections=0,
        next_attempt_at=None,
        error=None,
    )


def _retry(operation: Operation, error: str, now: datetime) -> Operation:
    pause = backoff(operation.attempts + 1, _FIRST_PAUSE, LONGEST_PAUSE)
    return replace(
        operation,
        state=OperationState.RUNNING,
        attempts=operation.attempts + 1,
        next_attempt_at=now + pause,
        error=error[:_LONGEST_TEXT],
    )


def _end(
    operation: Operation, state: OperationState, now: datetime, *, result: str | None = None, error: str | None = None
) -> Operation:
    return replace(
        operation,
        state=state,
        step=state.value,
        blocks=frozenset(),
        next_attempt_at=None,
        error=error,
        result=result,
        finished_at=now,
    )


def update_snapshot_record(record: SnapshotRecord, cloud_state: CloudState) -> SnapshotRecord:
    """The snapshot's record, updated from the cloud's state."""
    if record.cloud_id is None or not record.status.is_usable:
        return record
    found = cloud_state.snapshots[record.cloud_id]
    if found is None:
        return replace(record, status=SnapshotStatus.LOST, error="the cloud says that it is gone")
    if found.state is SnapshotState.ERROR:
        return replace(record, status=SnapshotStatus.FAILED, error=found.error or "the cloud could not finish it")
    if found.state is SnapshotState.COMPLETED:
        return replace(record, status=SnapshotStatus.COMPLETED, size_gb=found.size_gb, lacks=found.lacks)
    return record
