"""What is written down after a step: answers, refusals and silence."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gpudev.domain.disks.operations import (
    DiskState,
    OperationFacts,
    OperationKind,
    OperationState,
    SnapshotStatus,
    VolumeStatus,
)
from gpudev.domain.ids import ReservationId
from gpudev.planning.disks.operation_results import (
    LONGEST_PAUSE,
    MAX_REJECTIONS,
    CloudState,
    EnsureSnapshot,
    FailOperation,
    FinishOperation,
    GrowVolume,
    RemoveVolume,
    TagVolume,
    WriteRecords,
    after_call,
    after_no_answer,
    after_rejection,
    conclude_step,
)
from gpudev.ports.cloud import Snapshot, SnapshotState
from support.disks.operation_facts import (
    DISK,
    NOW,
    OTHER,
    RESERVATION,
    SAVED,
    SETTINGS,
    disk,
    operation,
    snapshot,
    volume,
    volume_record,
)


def begun(kind: OperationKind, holder: ReservationId | None, attached: bool) -> DiskState | None:
    mine = operation(kind)
    record = snapshot(operation_id=mine.operation_id, status=SnapshotStatus.BEGINNING, cloud_id=None)
    facts = OperationFacts(mine, disk(holder=holder), snapshots=(record,))
    seen = CloudState({"vol-1": volume(attached_to=("i-1",) if attached else ())})
    answer = Snapshot("snap-9", "vol-1", SnapshotState.PENDING, NOW, 10)
    changes = after_call(facts, seen, EnsureSnapshot(record, {}), answer, now=NOW, settings=SETTINGS)
    assert [(one.cloud_id, one.status) for one in changes.snapshots] == [("snap-9", SnapshotStatus.PENDING)]
    return changes.disk


@pytest.mark.parametrize(
    ("kind", "holder", "attached", "is_saved"),
    [
        (OperationKind.PUT_AWAY, RESERVATION, False, True),
        (OperationKind.PUT_AWAY, RESERVATION, True, False),
        (OperationKind.SNAPSHOT, None, False, True),
        (OperationKind.SNAPSHOT, RESERVATION, False, False),
        (OperationKind.SNAPSHOT, RESERVATION, True, False),
    ],
)
def test_a_disk_counts_as_saved_only_if_nobody_could_write(
    kind: OperationKind, holder: ReservationId | None, attached: bool, is_saved: bool
) -> None:
    saved = begun(kind, holder, attached)
    assert (saved is not None and saved.saved_as is not None) is is_saved


def refused(kind: OperationKind, call: Callable[[OperationFacts], Any], times: int) -> Any:
    mine = operation(kind, rejections=times - 1, attempts=times - 1)
    facts = OperationFacts(mine, disk(), snapshots=(SAVED,), volumes=(volume_record(),))
    return after_rejection(facts, call(facts), "no", NOW)


def test_what_is_refused_is_asked_again_a_few_times_and_then_given_up_in_words() -> None:
    def call(facts: OperationFacts) -> GrowVolume:
        return GrowVolume("vol-1", 20)

    pauses = []
    for times in (1, 2):
        again = refused(OperationKind.RESIZE, call, times).operation
        assert (again.state, again.error) == (OperationState.RUNNING, "no")
        pauses.append(again.next_attempt_at - NOW)
    assert pauses == [timedelta(seconds=2), timedelta(seconds=4)]
    over = refused(OperationKind.RESIZE, call, 3).operation
    assert (over.state, over.error, over.finished_at) == (OperationState.FAILED, "no", NOW)


def test_a_tag_or_an_old_volume_does_not_fail_what_is_done() -> None:
    over = refused(OperationKind.RENAME, lambda facts: TagVolume("vol-1", {}), 3).operation
    assert over.state is OperationState.DONE
    left = refused(OperationKind.RESTORE, lambda facts: RemoveVolume(facts.volumes[0], "vol-1"), 3).operation
    assert left.state is OperationState.RUNNING
    assert left.rejections == MAX_REJECTIONS
    failed = refused(OperationKind.PURGE, lambda facts: RemoveVolume(facts.volumes[0], "vol-1"), 3).operation
    assert failed.state is OperationState.FAILED


def test_silence_is_never_taken_for_an_answer() -> None:
    mine = operation(OperationKind.RESIZE)
    for attempt in range(200):
        mine = after_no_answer(OperationFacts(mine, disk()), "no answer", NOW).operation
        assert (mine.state, mine.attempts, mine.rejections) == (OperationState.RUNNING, attempt + 1, 0)
    assert mine.next_attempt_at == NOW + LONGEST_PAUSE


def test_a_clone_that_fails_gives_its_name_back_and_is_no_empty_disk() -> None:
    facts = OperationFacts(operation(OperationKind.CLONE), disk(volume_id=None, holder=None))
    changes = conclude_step(facts, FailOperation("the snapshot is gone"), NOW)
    assert changes.disk is not None
    assert (changes.disk.is_deleted, changes.disk.deleted_at) == (True, NOW)
    assert changes.disk.purge_started_at == NOW, "nobody can restore what never was"


def test_a_clone_lets_go_of_its_source_when_its_own_volume_is_begun() -> None:
    """What the volume is made from is a snapshot, and stays as it is."""
    mine = operation(OperationKind.CLONE, blocks=frozenset({DISK, OTHER}))
    facts = OperationFacts(mine, disk(volume_id=None, holder=None))
    making = volume_record(status=VolumeStatus.MAKING, volume_id=None, from_snapshot=SAVED.snapshot_id)
    changes = conclude_step(facts, WriteRecords("restoring its snapshot", volumes=(making,)), NOW)
    assert changes.operation.blocks == frozenset({DISK})
    waiting = conclude_step(facts, WriteRecords("looking at snapshots", snapshots=(SAVED,)), NOW)
    assert waiting.operation.blocks == frozenset({DISK, OTHER})


def test_what_is_over_blocks_nobody() -> None:
    mine = operation(OperationKind.SNAPSHOT, blocks=frozenset({DISK}))
    for step in (FinishOperation("done"), FailOperation("no")):
        changes = conclude_step(OperationFacts(mine, disk()), step, NOW)
        assert changes.operation.blocks == frozenset()
        assert changes.operation.finished_at == NOW
