"""What is written down after a step of an operation on a disk: what the cloud answered, refused or left unanswered."""

from dataclasses import replace
from datetime import datetime
from typing import assert_never

from gpudev.domain.disks.operations import (
    Changes,
    DiskSettings,
    Operation,
    OperationFacts,
    OperationKind,
    OperationState,
    SnapshotStatus,
    VolumeStatus,
)
from gpudev.planning.disk_calls import (
    CloudCall,
    EnsureSnapshot,
    EnsureVolume,
    Fail,
    Finish,
    GrowVolume,
    Record,
    RemoveSnapshot,
    RemoveVolume,
    Seen,
    TagVolume,
    Wait,
)
from gpudev.planning.disks.operation_context import what_it_lacks
from gpudev.ports.cloud import Snapshot, SnapshotState, Volume

_LONGEST_TEXT = 2000


def conclude(facts: OperationFacts, step: Record | Wait | Finish | Fail, now: datetime) -> Changes:
    operation = facts.operation
    match step:
        case Record():
            going_on = _going_on(operation, step.step)
            if operation.kind is OperationKind.CLONE and step.volumes:  # of a snapshot: the source may change again
                going_on = replace(going_on, blocks=frozenset({facts.disk.disk_id}))
            return Changes(going_on, step.disk, step.snapshots, step.volumes, step.event)
        case Wait():
            state = OperationState.WAITING if facts.before is not None else OperationState.RUNNING
            waiting = replace(operation, state=state, step=step.why, next_attempt_at=step.until, attempts=0, error=None)
            return Changes(waiting)
        case Finish():
            return Changes(
                _over(operation, OperationState.DONE, now, result=step.result[:_LONGEST_TEXT]),
                step.disk,
                event=_told(operation.kind, step.result),
            )
        case Fail():
            return _fail(facts, step.reason, now)
        case _:
            assert_never(step)


def after_call(
    facts: OperationFacts,
    seen: Seen,
    call: CloudCall,
    answer: Volume | Snapshot | None,
    *,
    now: datetime,
    settings: DiskSettings,
) -> Changes:
    operation, disk = facts.operation, facts.disk
    match call:
        case EnsureVolume():
            assert isinstance(answer, Volume)
            return _linked(facts, call, answer)
        case EnsureSnapshot():
            assert isinstance(answer, Snapshot)
            return _begun(facts, seen, call, answer)
        case GrowVolume():
            assert isinstance(answer, Volume)
            again = _going_on(operation, f"growing to {call.size_gb} GB")
            if answer.size_gb < call.size_gb:
                again = replace(again, next_attempt_at=now + settings.poll_every)
            return Changes(again)
        case TagVolume():
            return conclude(facts, Finish("done"), now)
        case RemoveVolume():
            gone = replace(call.record, status=VolumeStatus.REMOVED)
            unlinked = replace(disk, volume_id=None) if disk.volume_id == call.volume_id else None
            return Changes(_going_on(operation, "removed a volume"), unlinked, volumes=(gone,))
        case RemoveSnapshot():
            removed = replace(call.record, status=SnapshotStatus.REMOVED)
            return Changes(_going_on(operation, "removing snapshots"), snapshots=(removed,))
        case _:
            assert_never(call)


def after_refusal(facts: OperationFacts, call: CloudCall, error: str, now: datetime, settings: DiskSettings) -> Changes:
    """The cloud said no. Often that passes (a limit, a volume that is being changed), so it is asked a few times."""
    operation = facts.operation
    again = _again(operation, error, now, settings)
    again = replace(again, refusals=operation.refusals + 1)
    if again.refusals < settings.max_refusals:
        return Changes(again)
    match call:
        case EnsureVolume() | GrowVolume():
            return _fail(facts, error, now)
        case EnsureSnapshot():
            failed = replace(call.record, status=SnapshotStatus.FAILED, error=error[:_LONGEST_TEXT])
            return Changes(_going_on(operation, "no snapshot could be taken"), snapshots=(failed,))
        case TagVolume():
            return conclude(facts, Finish(f"done, but the volume still carries the old name: {error}"), now)
        case RemoveSnapshot():  # the others go all the same
            refused = replace(call.record, error=error[:_LONGEST_TEXT])
            return Changes(_going_on(operation, "removing snapshots"), snapshots=(refused,))
        case RemoveVolume():
            if operation.kind in (OperationKind.PURGE, OperationKind.PRUNE):
                return _fail(facts, error, now)
            return Changes(again)  # what the operation is for is done; the next pruning removes the rest
        case _:
            assert_never(call)


def after_silence(facts: OperationFacts, error: str, now: datetime, settings: DiskSettings) -> Changes:
    """Unknown is unknown: it is asked again, without end, and everybody can read why it takes so long."""
    return Changes(_again(facts.operation, error, now, settings))


def _linked(facts: OperationFacts, call: EnsureVolume, volume: Volume) -> Changes:
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
    return Changes(_going_on(operation, "the volume is made"), on_it, volumes=(made, *replaced), event=event)


_STATUS = {
    SnapshotState.PENDING: SnapshotStatus.PENDING,
    SnapshotState.COMPLETED: SnapshotStatus.COMPLETED,
    SnapshotState.ERROR: SnapshotStatus.FAILED,
}


def _begun(facts: OperationFacts, seen: Seen, call: EnsureSnapshot, snapshot: Snapshot) -> Changes:
    operation, disk, status = facts.operation, facts.disk, _STATUS[snapshot.state]
    record = replace(
        call.record,
        status=status,
        cloud_id=snapshot.snapshot_id,
        size_gb=snapshot.size_gb,
        error=(snapshot.error or "the cloud could not take it") if status is SnapshotStatus.FAILED else None,
        lacks=snapshot.lacks,
    )
    going_on = _going_on(operation, "the snapshot is being taken")
    if operation.kind is OperationKind.SNAPSHOT:
        going_on = replace(going_on, blocks=frozenset())  # what is written from now on is not in it
    elif operation.kind is OperationKind.CLONE:
        going_on = replace(going_on, blocks=frozenset({disk.disk_id}))
    saved = None
    if status.is_good and record.disk_id == disk.disk_id and _nobody_writes(facts, seen):
        saved = replace(disk, saved_as=record.snapshot_id)
    trouble = record.error or what_it_lacks(record)
    event = f"snapshot {snapshot.snapshot_id} ({record.why}){f': {trouble}' if trouble else ''}"
    return Changes(going_on, saved, (record,), event=event if record.disk_id == disk.disk_id else None)


def _nobody_writes(facts: OperationFacts, seen: Seen) -> bool:
    """No dev server could have written between the snapshot and now. One that was asked for may be of a disk in use."""
    volume_id = facts.disk.volume_id
    volume = None if volume_id is None else seen.volumes.get(volume_id)
    if volume is None or volume.attached_to:
        return False
    return facts.operation.kind is not OperationKind.SNAPSHOT or facts.disk.holder is None


def _fail(facts: OperationFacts, reason: str, now: datetime) -> Changes:
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
    failed = _over(operation, OperationState.FAILED, now, error=reason[:_LONGEST_TEXT])
    return Changes(failed, gone, snapshots, volumes, event=f"{operation.kind.words} failed: {reason}")


def _told(kind: OperationKind, result: str) -> str:
    """For the disk's history."""
    return result if result.startswith(kind.words) else f"{kind.words}: {result}"


def _going_on(operation: Operation, step: str) -> Operation:
    return replace(
        operation,
        state=OperationState.RUNNING,
        step=step,
        attempts=0,
        refusals=0,
        next_attempt_at=None,
        error=None,
    )


def _again(operation: Operation, error: str, now: datetime, settings: DiskSettings) -> Operation:
    # The exponent is bounded: numbers that no date can hold are no help to anybody.
    pause = min(settings.retry_backoff * 2 ** min(operation.attempts, 30), settings.longest_backoff)
    return replace(
        operation,
        state=OperationState.RUNNING,
        attempts=operation.attempts + 1,
        next_attempt_at=now + pause,
        error=error[:_LONGEST_TEXT],
    )


def _over(
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
