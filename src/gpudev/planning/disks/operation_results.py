"""How a step of a disk operation may end, and what is written down then.

A step asks the cloud for something, writes records first, waits, finishes or fails. What the cloud answered, rejected
or left unanswered becomes changes of the operation, its disk, its snapshots and its volumes.
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
"""Give up what the cloud has rejected this often: a limit or a passing state has changed by then, or a person must act.
What the cloud does not answer is retried indefinitely."""
_LONGEST_TEXT = 2000
_FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=5)
"""Between two attempts of one step. Short enough that nobody waits long for a cloud that is back."""


@dataclass(frozen=True, slots=True)
class CloudQuery:
    """What has to be seen before a step is decided, by the cloud's ids."""

    volumes: frozenset[str] = frozenset()
    snapshots: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CloudState:
    """What was looked at. None: the cloud says that there is none."""

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
    """Nothing is asked of the cloud; this is to be written down before anything else."""

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
            if operation.kind is OperationKind.CLONE and step.volumes:  # of a snapshot: the source may change again
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
            gone = replace(call.record, status=VolumeStatus.REMOVED)
            unlinked = replace(disk, volume_id=None) if disk.volume_id == call.volume_id else None
            return OperationChanges(_continue(operation, "removed a volume"), unlinked, volumes=(gone,))
        case RemoveSnapshot():
            removed = replace(call.record, status=SnapshotStatus.REMOVED)
            return OperationChanges(_continue(operation, "removing snapshots"), snapshots=(removed,))
        case _:
            assert_never(call)


def after_rejection(facts: OperationFacts, call: CloudCall, error: str, now: datetime) -> OperationChanges:
    """The cloud said no. Often that passes (a limit, a volume that is being changed), so it is asked a few times."""
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
        case RemoveSnapshot():  # the others go all the same
            refused = replace(call.record, error=error[:_LONGEST_TEXT])
            return OperationChanges(_continue(operation, "removing snapshots"), snapshots=(refused,))
        case RemoveVolume():
            if operation.kind in (OperationKind.PURGE, OperationKind.PRUNE):
                return _fail(facts, error, now)
            return OperationChanges(again)  # what the operation is for is done; the next pruning removes the rest
        case _:
            assert_never(call)


def after_no_answer(facts: OperationFacts, error: str, now: datetime) -> OperationChanges:
    """Unknown is unknown: it is asked again, without end, and everybody can read why it takes so long."""
    return OperationChanges(_retry(facts.operation, error, now))


def _volume_made(facts: OperationFacts, call: EnsureVolume, volume: Volume) -> OperationChanges:
    """The disk is on its new volume; the old one is on its way out if it is ours, and otherwise just left."""
    operation, disk = facts.operation, facts.disk
    record = next(one for one in facts.volumes if one.token == call.token)
    made = replace(record, status=VolumeStatus.KEPT, volume_id=volume.volume_id, size_gb=volume.size_gb)
    replaced = tuple(
        replace(one, status=VolumeStatus.RETIRED, retired_by=operation.operation_id, saved_in=disk.saved_as)
        for one in facts.volumes
        if one.volume_id == disk.volume_id and one.status is VolumeStatus.KEPT and one.token != record.token
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
        going_on = replace(going_on, blocks=frozenset())  # what is written from now on is not in it
    elif operation.kind is OperationKind.CLONE:
        going_on = replace(going_on, blocks=frozenset({disk.disk_id}))
    saved = None
    if status.is_usable and record.disk_id == disk.disk_id and _is_unwritten(facts, cloud_state):
        saved = replace(disk, saved_as=record.snapshot_id)
    trouble = record.error or record.missing_note
    event = f"snapshot {snapshot.snapshot_id} ({record.why}){f': {trouble}' if trouble else ''}"
    return OperationChanges(going_on, saved, (record,), event=event if record.disk_id == disk.disk_id else None)


def _is_unwritten(facts: OperationFacts, cloud_state: CloudState) -> bool:
    """No dev server could have written between the snapshot and now. One that was asked for may be of a disk in use."""
    volume_id = facts.disk.volume_id
    volume = None if volume_id is None else cloud_state.volumes.get(volume_id)
    if volume is None or volume.attached_to:
        return False
    return facts.operation.kind is not OperationKind.SNAPSHOT or facts.disk.holder is None


def _fail(facts: OperationFacts, reason: str, now: datetime) -> OperationChanges:
    """Nothing is left half begun. A disk that was to be made and could not be gives its name back, and cannot be
    restored: it would be empty, and stand before one of that name that somebody did delete."""
    operation, disk = facts.operation, facts.disk
    mine = operation.operation_id
    snapshots = tuple(
        replace(one, status=SnapshotStatus.FAILED, error=reason[:_LONGEST_TEXT])
        for one in facts.snapshots
        if one.operation_id == mine and one.status is SnapshotStatus.BEGINNING
    )
    volumes = tuple(
        replace(one, status=VolumeStatus.REMOVED)
        for one in facts.volumes
        if one.operation_id == mine and one.status is VolumeStatus.MAKING
    )
    never_was = operation.kind in (OperationKind.CREATE, OperationKind.CLONE) and disk.volume_id is None
    gone = replace(disk, is_deleted=True, deleted_at=now, purge_started_at=now) if never_was else None
    failed = _end(operation, OperationState.FAILED, now, error=reason[:_LONGEST_TEXT])
    return OperationChanges(failed, gone, snapshots, volumes, event=f"{operation.kind.label} failed: {reason}")


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
    """A snapshot's record, as what was seen of it makes it."""
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
