"""The next step of each operation, as tables: what is recorded and seen, and what follows."""

from dataclasses import replace
from typing import Any

import pytest

from gpudev.domain.disks.operations import (
    Operation,
    OperationFacts,
    OperationKind,
    SnapshotStatus,
    VolumeStatus,
)
from gpudev.planning.disks.operation_results import (
    EnsureSnapshot,
    EnsureVolume,
    FailOperation,
    FinishOperation,
    GrowVolume,
    OperationStep,
    RemoveSnapshot,
    RemoveVolume,
    TagVolume,
    WaitForCloud,
    WriteRecords,
)
from gpudev.ports.cloud import RECORDED_TAG, SnapshotState, Volume
from support.disks.operation_facts import (
    NOW,
    OTHER,
    SAVED,
    TAGS,
    disk,
    operation,
    seen_snapshot,
    snapshot,
    step_of,
    volume,
    volume_record,
)


def make_ready(**changes: Any) -> Operation:
    return operation(OperationKind.MAKE_READY, **changes)


Row = tuple[OperationFacts, tuple[Volume, ...], type[OperationStep], str]

MAKING_READY: dict[str, Row] = {
    "a disk that was never used gets a new volume where the dev server will be": (
        OperationFacts(make_ready(zone="zone-b"), disk(volume_id=None, zone=None, size_gb=None)),
        (),
        WriteRecords,
        "making a volume in zone-b",
    ),
    "a volume that is there and free is ready": (
        OperationFacts(make_ready(zone="zone-a"), disk()),
        (volume(),),
        FinishOperation,
        "volume vol-1 is ready, as it was left",
    ),
    "one that a machine still has is waited for": (
        OperationFacts(make_ready(zone="zone-a"), disk()),
        (volume(attached_to=("i-1",)),),
        WaitForCloud,
        "still attached to i-1",
    ),
    "one of which a snapshot is still being copied is waited for": (
        OperationFacts(make_ready(zone="zone-a"), disk()),
        (volume(busy_reason="its snapshot is still being copied"),),
        WaitForCloud,
        "still being copied",
    ),
    "one in another zone is saved first": (
        OperationFacts(make_ready(zone="zone-b"), disk()),
        (volume(),),
        WriteRecords,
        "taking a snapshot",
    ),
    "one in another zone that is saved is made anew there": (
        OperationFacts(make_ready(zone="zone-b"), disk(saved_as=SAVED.snapshot_id), snapshots=(SAVED,)),
        (volume(),),
        WriteRecords,
        "restoring its snapshot in zone-b",
    ),
    "a snapshot that is not finished is waited for before a move": (
        OperationFacts(
            make_ready(zone="zone-b"),
            disk(saved_as=SAVED.snapshot_id),
            snapshots=(replace(SAVED, status=SnapshotStatus.PENDING),),
        ),
        (volume(),),
        WaitForCloud,
        "being taken",
    ),
    "a volume that is gone comes back from the snapshot of exactly what was on it": (
        OperationFacts(make_ready(zone="zone-a"), disk(saved_as=SAVED.snapshot_id), snapshots=(SAVED,)),
        (),
        WriteRecords,
        "restoring its snapshot in zone-a",
    ),
    "a volume that is gone with what was on it fails in words": (
        OperationFacts(make_ready(zone="zone-a"), disk(), snapshots=(SAVED,)),
        (),
        FailOperation,
        "restore one of its snapshots",
    ),
    "a disk that had a volume nobody knows any more fails in words": (
        OperationFacts(make_ready(zone="zone-a"), disk(volume_id=None), volumes=(volume_record(),)),
        (),
        FailOperation,
        "an operator has to look",
    ),
    "a disk whose snapshot was lost is not made empty": (
        OperationFacts(
            make_ready(zone="zone-a"),
            disk(volume_id=None, saved_as=SAVED.snapshot_id),
            snapshots=(replace(SAVED, status=SnapshotStatus.LOST),),
        ),
        (),
        FailOperation,
        "an operator has to look",
    ),
    "without a zone nothing is made": (
        OperationFacts(make_ready(), disk(volume_id=None, zone=None)),
        (),
        FailOperation,
        "in which zone",
    ),
    "a disk that another reservation holds is not made ready": (
        OperationFacts(make_ready(), disk(holder=None)),
        (volume(),),
        FinishOperation,
        "ended before it was ready",
    ),
    "a deleted disk is not made ready": (
        OperationFacts(make_ready(), disk(is_deleted=True)),
        (volume(),),
        FailOperation,
        "deleted",
    ),
    "one that comes later waits": (
        OperationFacts(make_ready(), disk(), before=operation(OperationKind.RESTORE, step="making a volume")),
        (volume(),),
        WaitForCloud,
        "waits for restore (making a volume)",
    ),
}


@pytest.mark.parametrize("name", MAKING_READY)
def test_making_ready(name: str) -> None:
    facts, volumes, kind, words = MAKING_READY[name]
    step = step_of(facts, *volumes)
    assert isinstance(step, kind)
    assert words in str(step)


RESTORE = operation(OperationKind.RESTORE, snapshot_id=SAVED.snapshot_id, reservation_id=None)
FREE = disk(holder=None)
OTHERS: dict[str, Row] = {
    "restoring saves what is there first": (
        OperationFacts(RESTORE, FREE, snapshots=(SAVED,)),
        (volume(),),
        WriteRecords,
        "taking a snapshot",
    ),
    "restoring needs no second snapshot of the same": (
        OperationFacts(RESTORE, replace(FREE, saved_as=SAVED.snapshot_id), snapshots=(SAVED,)),
        (volume(),),
        WriteRecords,
        "restoring its snapshot in zone-a",
    ),
    "restoring a disk whose volume is gone has nothing to save": (
        OperationFacts(RESTORE, FREE, snapshots=(SAVED,)),
        (),
        WriteRecords,
        "restoring its snapshot in zone-a",
    ),
    "restoring waits while a machine has the volume": (
        OperationFacts(RESTORE, FREE, snapshots=(SAVED,)),
        (volume(attached_to=("i-1",)),),
        WaitForCloud,
        "still attached",
    ),
    "restoring what is lost fails": (
        OperationFacts(RESTORE, FREE, snapshots=(replace(SAVED, status=SnapshotStatus.LOST),)),
        (volume(),),
        FailOperation,
        "the snapshot is gone",
    ),
    "restoring where no zone is known leaves it to the next use": (
        OperationFacts(RESTORE, replace(FREE, volume_id=None, zone=None), snapshots=(SAVED,)),
        (),
        FinishOperation,
        "when it is next used",
    ),
    "putting away takes a snapshot": (
        OperationFacts(operation(OperationKind.PUT_AWAY), disk()),
        (volume(),),
        WriteRecords,
        "end of reservation",
    ),
    "putting away waits for the machine to let go": (
        OperationFacts(operation(OperationKind.PUT_AWAY), disk()),
        (volume(attached_to=("i-1",)),),
        WaitForCloud,
        "still attached",
    ),
    "putting away what nobody could write to needs no snapshot": (
        OperationFacts(operation(OperationKind.PUT_AWAY), disk(saved_as=SAVED.snapshot_id), snapshots=(SAVED,)),
        (volume(),),
        FinishOperation,
        "snapshot",
    ),
    "putting away frees the disk also when its volume is gone": (
        OperationFacts(operation(OperationKind.PUT_AWAY), disk()),
        (),
        FinishOperation,
        "its volume vol-1 is gone",
    ),
    "growing asks for it": (
        OperationFacts(operation(OperationKind.RESIZE, size_gb=20), disk()),
        (volume(),),
        GrowVolume,
        "20",
    ),
    "growing is done when it is seen": (
        OperationFacts(operation(OperationKind.RESIZE, size_gb=20), disk()),
        (volume(size_gb=20),),
        FinishOperation,
        "20 GB",
    ),
    "growing what was never used is written down": (
        OperationFacts(operation(OperationKind.RESIZE, size_gb=20), disk(volume_id=None)),
        (),
        FinishOperation,
        "20 GB",
    ),
    "a new name is written on the volume": (
        OperationFacts(operation(OperationKind.RENAME), disk(name="play")),
        (volume(),),
        TagVolume,
        "play",
    ),
    "a name that is there already needs nothing": (
        OperationFacts(operation(OperationKind.RENAME), disk()),
        (volume(),),
        FinishOperation,
        "done",
    ),
    "nothing is purged that nobody allowed to": (
        OperationFacts(operation(OperationKind.PURGE), disk(is_deleted=True), volumes=(volume_record(),)),
        (volume(),),
        FailOperation,
        "nobody said",
    ),
    "purging begins with marked snapshots": (
        OperationFacts(
            operation(OperationKind.PURGE),
            disk(is_deleted=True, purge_started_at=NOW),
            snapshots=(replace(SAVED, status=SnapshotStatus.REMOVING),),
            volumes=(volume_record(),),
        ),
        (volume(),),
        RemoveSnapshot,
        "snap-1",
    ),
    "purging removes a volume that we made": (
        OperationFacts(
            operation(OperationKind.PURGE), disk(is_deleted=True, purge_started_at=NOW), volumes=(volume_record(),)
        ),
        (volume(),),
        RemoveVolume,
        "vol-1",
    ),
    "purging leaves a volume that others made": (
        OperationFacts(operation(OperationKind.PURGE), disk(is_deleted=True, purge_started_at=NOW)),
        (volume(),),
        FinishOperation,
        "was not made here and is left",
    ),
    "pruning touches no snapshot that is not marked": (
        OperationFacts(operation(OperationKind.PRUNE), disk(), snapshots=(SAVED, snapshot(2))),
        (volume(),),
        FinishOperation,
        "done",
    ),
    "a replaced volume stays until what was on it is in a finished snapshot": (
        OperationFacts(
            operation(OperationKind.PRUNE),
            disk(volume_id="vol-2"),
            snapshots=(replace(SAVED, status=SnapshotStatus.PENDING),),
            volumes=(volume_record(status=VolumeStatus.RETIRED, saved_in=SAVED.snapshot_id),),
        ),
        (volume(), volume("vol-2")),
        FinishOperation,
        "done",
    ),
    "a replaced volume goes when it is": (
        OperationFacts(
            operation(OperationKind.PRUNE),
            disk(volume_id="vol-2"),
            snapshots=(SAVED,),
            volumes=(volume_record(status=VolumeStatus.RETIRED, saved_in=SAVED.snapshot_id),),
        ),
        (volume(), volume("vol-2")),
        RemoveVolume,
        "vol-1",
    ),
    "a snapshot of another disk is no safe place for this one": (
        OperationFacts(
            operation(OperationKind.PRUNE),
            disk(volume_id="vol-2"),
            snapshots=(replace(SAVED, disk_id=OTHER),),
            volumes=(volume_record(status=VolumeStatus.RETIRED, saved_in=SAVED.snapshot_id),),
        ),
        (volume(), volume("vol-2")),
        FinishOperation,
        "done",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_operations(name: str) -> None:
    facts, volumes, kind, words = OTHERS[name]
    step = step_of(facts, *volumes)
    assert isinstance(step, kind)
    assert words in str(step)


def test_what_was_begun_comes_before_everything_else() -> None:
    """The answer may have been lost; what the cloud made must not be forgotten, even if we would decide otherwise."""
    mine = operation(OperationKind.MAKE_READY)
    making = volume_record(operation_id=mine.operation_id, status=VolumeStatus.MAKING, volume_id=None)
    step = step_of(OperationFacts(mine, disk(holder=None, volume_id=None), volumes=(making,)))
    assert step == EnsureVolume(making.token, 10, "zone-a", TAGS, None)
    beginning = snapshot(operation_id=mine.operation_id, status=SnapshotStatus.BEGINNING, cloud_id=None)
    step = step_of(OperationFacts(mine, disk(holder=None), snapshots=(beginning,)))
    assert step == EnsureSnapshot(beginning, {**TAGS, RECORDED_TAG: str(beginning.snapshot_id)})


def test_a_volume_from_a_snapshot_that_is_not_known_is_never_made_empty() -> None:
    mine = operation(OperationKind.MAKE_READY)
    making = volume_record(
        operation_id=mine.operation_id, status=VolumeStatus.MAKING, volume_id=None, from_snapshot=SAVED.snapshot_id
    )
    step = step_of(OperationFacts(mine, disk(volume_id=None), volumes=(making,)))
    assert isinstance(step, FailOperation)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (SnapshotState.COMPLETED, SnapshotStatus.COMPLETED),
        (SnapshotState.ERROR, SnapshotStatus.FAILED),
        (None, SnapshotStatus.LOST),
    ],
)
def test_what_became_of_a_snapshot_is_written_down_first(state: SnapshotState | None, status: SnapshotStatus) -> None:
    pending = replace(SAVED, status=SnapshotStatus.PENDING)
    facts = OperationFacts(RESTORE, FREE, snapshots=(pending,))
    step = step_of(facts, volume(), snapshots={"snap-1": state and seen_snapshot(SAVED, state)})
    assert isinstance(step, WriteRecords)
    assert [one.status for one in step.snapshots] == [status]


def test_why_a_snapshot_failed_is_told_where_it_is_known() -> None:
    facts = OperationFacts(RESTORE, FREE, snapshots=(replace(SAVED, status=SnapshotStatus.PENDING),))
    failed = replace(seen_snapshot(SAVED, SnapshotState.ERROR), error="No space left on device")
    step = step_of(facts, volume(), snapshots={"snap-1": failed})
    assert isinstance(step, WriteRecords)
    assert [one.error for one in step.snapshots] == ["No space left on device"]


def test_two_snapshots_that_came_to_nothing_are_enough() -> None:
    mine = operation(OperationKind.PUT_AWAY)
    failed = tuple(
        snapshot(number, operation_id=mine.operation_id, status=SnapshotStatus.FAILED, error="no room")
        for number in (1, 2)
    )
    assert isinstance(step_of(OperationFacts(mine, disk(), snapshots=failed[:1]), volume()), WriteRecords)
    step = step_of(OperationFacts(mine, disk(), snapshots=failed), volume())
    assert isinstance(step, FinishOperation), "the disk must become free all the same"
    assert "no room" in step.result
    asked = replace(mine, kind=OperationKind.SNAPSHOT)
    assert isinstance(step_of(OperationFacts(asked, disk(), snapshots=failed), volume()), FailOperation)


def test_from_ready_on_no_snapshot_holds_what_is_on_the_disk() -> None:
    facts = OperationFacts(make_ready(zone="zone-a"), disk(saved_as=SAVED.snapshot_id), snapshots=(SAVED,))
    step = step_of(facts, volume())
    assert isinstance(step, FinishOperation)
    assert step.disk is not None
    assert step.disk.saved_as is None
