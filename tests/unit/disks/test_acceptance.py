"""What may be asked for and what is refused, in words; which snapshots go; where a disk may be used."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.domain.disks.operations import (
    CloneDisk,
    CreateDisk,
    DeleteDisk,
    DiskRequest,
    DiskSettings,
    DiskState,
    MakeReady,
    Operation,
    OperationChanges,
    OperationId,
    OperationKind,
    PruneDisk,
    PurgeDisk,
    RecordedSnapshotId,
    RenameDisk,
    ResizeDisk,
    RestoreDisk,
    SnapshotDisk,
    SnapshotDiskInUse,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    UndeleteDisk,
    UserDisks,
)
from gpudev.domain.errors import Conflict, DiskHeld, GpuDevError, Invalid, LimitReached, NotFound
from gpudev.domain.ids import DiskId, ReservationId, UserId, new_disk_id, new_reservation_id
from gpudev.planning.disks.acceptance import accept_request
from gpudev.planning.disks.retention import prunable

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SETTINGS = DiskSettings(max_per_user=3, max_gb_per_user=300, max_size_gb=200, keep_last=2, keep_daily_days=5)
WORK, PLAY, GONE = (DiskId(UUID(int=number)) for number in (1, 2, 3))
RESERVATION = ReservationId(UUID(int=9))
SNAPSHOT = RecordedSnapshotId(UUID(int=20))


def disk(disk_id: DiskId, name: str, **changes: Any) -> DiskState:
    return replace(DiskState(disk_id, UserId(1), "ada", name, NOW, 100, "vol-1", "zone-a", mark=1), **changes)


def recorded(number: int, disk_id: DiskId = WORK, **changes: Any) -> SnapshotRecord:
    made = SnapshotRecord(
        RecordedSnapshotId(UUID(int=number)),
        disk_id,
        OperationId(UUID(int=99)),
        "vol-1",
        SnapshotReason.END_OF_RESERVATION,
        SnapshotStatus.COMPLETED,
        NOW - timedelta(days=40) + timedelta(days=number - 20),
        f"snap-{number}",
        100,
    )
    return replace(made, **changes)


def ada(**changes: Any) -> UserDisks:
    """Two living disks and a deleted one that was called as the first is."""
    deleted = disk(GONE, "work", is_deleted=True, deleted_at=NOW - timedelta(days=10))
    disks = {WORK: disk(WORK, "work"), PLAY: disk(PLAY, "play", volume_id=None), GONE: deleted}
    return replace(UserDisks(UserId(1), "ada", disks, snapshots=(recorded(20),)), **changes)


def held(facts: UserDisks) -> UserDisks:
    return replace(facts, disks={**facts.disks, WORK: replace(facts.disks[WORK], holder=RESERVATION)})


def busy(facts: UserDisks, kind: OperationKind) -> UserDisks:
    other = Operation(OperationId(uuid4()), kind, UserId(1), WORK, NOW, blocks=frozenset({WORK}), step="at it")
    return replace(facts, unfinished=(other,))


def ask(request: DiskRequest, facts: UserDisks, now: datetime = NOW) -> OperationChanges | None:
    return accept_request(request, facts, OperationId(uuid4()), now, SETTINGS)


NEW = new_disk_id()
REFUSED: list[tuple[DiskRequest, UserDisks, type[GpuDevError], str]] = [
    (CreateDisk(NEW, "work"), ada(), Conflict, "already have a disk 'work'"),
    (CreateDisk(NEW, "Work"), ada(), Invalid, "invalid disk name"),
    (CreateDisk(NEW, "none"), ada(), Invalid, "another name"),
    (CreateDisk(NEW, "big", 201), ada(), Invalid, "expected 1 to 200"),
    (CreateDisk(NEW, "more", 101), ada(), LimitReached, "200 GB in total"),
    (SnapshotDisk(PLAY), ada(), Conflict, "nothing to snapshot"),
    (SnapshotDisk(NEW), ada(), NotFound, "disk not found"),
    (SnapshotDisk(GONE), ada(), Conflict, "deleted"),
    (RestoreDisk(WORK, SNAPSHOT), held(ada()), DiskHeld, "held by reservation 00000000"),
    (RestoreDisk(WORK, RecordedSnapshotId(uuid4())), ada(), NotFound, "no such snapshot"),
    (RestoreDisk(PLAY, SNAPSHOT), ada(), NotFound, "no such snapshot"),
    (
        RestoreDisk(WORK, SNAPSHOT),
        ada(snapshots=(recorded(20, status=SnapshotStatus.REMOVING),)),
        Conflict,
        "it is removing",
    ),
    (RestoreDisk(WORK, SNAPSHOT), busy(ada(), OperationKind.SNAPSHOT), Conflict, "snapshot is under way (at it)"),
    (CloneDisk(NEW, WORK, "copy"), held(ada()), DiskHeld, "cloning it has to wait"),
    (CloneDisk(NEW, WORK, "copy", size_gb=50), ada(), Invalid, "at least 100 GB"),
    (CloneDisk(NEW, PLAY, "copy"), ada(), Conflict, "nothing to clone"),
    (ResizeDisk(WORK, 100), ada(), Invalid, "only grow"),
    (ResizeDisk(WORK, 201), ada(), Invalid, "expected 1 to 200"),
    (RenameDisk(WORK, "play"), ada(), Conflict, "already have a disk 'play'"),
    (RenameDisk(WORK, "new"), held(ada()), DiskHeld, "renaming it has to wait"),
    (DeleteDisk(WORK), held(ada()), DiskHeld, "deleting it has to wait"),
    (DeleteDisk(WORK), busy(ada(), OperationKind.CLONE), Conflict, "clone is under way"),
    (UndeleteDisk(WORK), ada(), Conflict, "is not deleted"),
    (UndeleteDisk(GONE), ada(), Conflict, "already have a disk 'work'; restore it under another name"),
    (MakeReady(WORK, RESERVATION), ada(), DiskHeld, "not held by"),
]


@pytest.mark.parametrize(("request_", "facts", "error", "words"), REFUSED)
def test_what_is_refused_says_why(
    request_: DiskRequest, facts: UserDisks, error: type[GpuDevError], words: str
) -> None:
    with pytest.raises(error) as refusal:
        ask(request_, facts)
    assert type(refusal.value) is error
    assert words in str(refusal.value)


def test_a_purge_that_has_begun_is_not_undone() -> None:
    facts = ada()
    going = replace(facts.disks[GONE], purge_started_at=NOW, name="old")
    with pytest.raises(Conflict, match="too long ago"):
        ask(UndeleteDisk(GONE), replace(facts, disks={GONE: going}))


@pytest.mark.parametrize("request_", [SnapshotDisk(WORK), ResizeDisk(WORK, 150)])
def test_a_disk_in_use_can_be_snapshotted_and_grown(request_: DiskRequest) -> None:
    assert ask(request_, held(ada())) is not None


def test_what_the_system_does_makes_nobody_wait_for_an_answer() -> None:
    changes = ask(DeleteDisk(WORK), busy(ada(), OperationKind.PRUNE))
    assert changes is not None
    assert changes.disk is not None
    assert (changes.disk.is_deleted, changes.disk.deleted_at) == (True, NOW)


def test_two_growths_count_together() -> None:
    growing = Operation(OperationId(uuid4()), OperationKind.RESIZE, UserId(1), WORK, NOW, size_gb=190)
    with pytest.raises(LimitReached):
        ask(ResizeDisk(PLAY, 120), ada(unfinished=(growing,)))
    assert ask(ResizeDisk(PLAY, 110), ada(unfinished=(growing,))) is not None


def test_a_disk_that_is_yet_to_be_made_counts_with_the_usual_size() -> None:
    facts = ada()
    unmade = replace(facts.disks[PLAY], size_gb=None, holder=RESERVATION)
    facts = replace(facts, disks={**facts.disks, PLAY: unmade})
    with pytest.raises(LimitReached):
        ask(CreateDisk(NEW, "more", 101), facts)
    assert ask(CreateDisk(NEW, "more", 100), facts) is not None


def test_a_deleted_disk_comes_back_under_another_name_and_within_the_quota() -> None:
    changes = ask(UndeleteDisk(GONE, "old"), ada())
    assert changes is not None
    assert changes.disk is not None
    assert (changes.disk.name, changes.disk.is_deleted, changes.disk.deleted_at) == ("old", False, None)
    with pytest.raises(LimitReached):
        accept_request(UndeleteDisk(GONE, "old"), ada(), OperationId(uuid4()), NOW, replace(SETTINGS, max_per_user=2))


@pytest.mark.parametrize(
    ("days", "facts", "may"),
    [
        (19, ada(), False),
        (20, ada(), True),
        (20, busy(ada(), OperationKind.SNAPSHOT), True),
        (90, ada(unfinished=(Operation(OperationId(uuid4()), OperationKind.PRUNE, UserId(1), GONE, NOW),)), False),
    ],
)
def test_a_deleted_disk_is_purged_when_its_time_is_over_and_nobody_is_at_it(
    days: int, facts: UserDisks, may: bool
) -> None:
    assert (ask(PurgeDisk(GONE), facts, NOW + timedelta(days=days)) is not None) is may


def test_what_nobody_deleted_is_never_purged() -> None:
    facts, late = ada(), NOW + timedelta(days=4000)
    for disk_id in (WORK, PLAY, NEW):
        assert ask(PurgeDisk(disk_id), facts, late) is None
    undated = replace(facts.disks[GONE], deleted_at=None)
    assert ask(PurgeDisk(GONE), replace(facts, disks={GONE: undated}), late) is None
    claimed = replace(facts.disks[GONE], holder=RESERVATION)
    assert ask(PurgeDisk(GONE), replace(facts, disks={GONE: claimed}), late) is None


def test_a_snapshot_is_cloned_while_its_disk_is_in_use() -> None:
    asked = ask(CloneDisk(NEW, WORK, "copy", snapshot_id=SNAPSHOT), held(ada()))
    assert asked is not None
    assert asked.operation.snapshot_id == SNAPSHOT
    assert WORK not in asked.operation.blocks, "whoever uses the disk is not kept waiting"


def test_a_purge_waits_for_a_clone_that_is_nowhere_else_yet() -> None:
    """A clone without a volume is still only in the snapshot it was cloned from."""
    only_there = recorded(30, GONE)
    facts, late = ada(snapshots=(only_there,)), NOW + timedelta(days=60)
    waiting = replace(facts.disks[PLAY], saved_as=only_there.snapshot_id)
    assert ask(PurgeDisk(GONE), replace(facts, disks={**facts.disks, PLAY: waiting}), late) is None
    there = replace(waiting, volume_id="vol-2")
    changes = ask(PurgeDisk(GONE), replace(facts, disks={**facts.disks, PLAY: there}), late)
    assert changes is not None
    assert [one.status for one in changes.snapshots] == [SnapshotStatus.REMOVING]


# --- which snapshots go --------------------------------------------------------------------------------------------


def test_the_last_few_and_one_for_each_day_stay() -> None:
    hours = [1, 2, 3, 25, 26, 49, 24 * 6, 24 * 7]
    snapshots = [recorded(number, created_at=NOW - timedelta(hours=age)) for number, age in enumerate(hours, 20)]
    gone = prunable(snapshots, (), NOW, SETTINGS)
    ages = sorted(round((NOW - one.created_at) / timedelta(hours=1)) for one in gone)
    assert ages == [3, 26, 24 * 6, 24 * 7]


@pytest.mark.parametrize("keep", range(8))
@pytest.mark.parametrize("there", range(9))
def test_as_many_of_one_day_stay_as_the_settings_say(there: int, keep: int) -> None:
    snapshots = [recorded(20 + number, created_at=NOW - timedelta(minutes=number)) for number in range(there)]
    settings = replace(SETTINGS, keep_last=keep, keep_daily_days=0)
    gone = prunable(snapshots, (), NOW, settings)
    assert gone == snapshots[max(keep, 1) :][::-1]


def test_what_somebody_asked_for_stays_longer_and_counts_for_nothing_else() -> None:
    asked = recorded(20, why=SnapshotReason.ASKED, created_at=NOW - timedelta(days=89))
    older = recorded(21, why=SnapshotReason.ASKED, created_at=NOW - timedelta(days=91))
    automatic = [recorded(30 + number, created_at=NOW - timedelta(days=10, hours=number)) for number in range(3)]
    assert prunable([asked, older, *automatic], (), NOW, SETTINGS) == [older, automatic[2]]


def test_failed_ones_go_and_lost_ones_are_left_alone() -> None:
    failed = recorded(20, status=SnapshotStatus.FAILED)
    lost, never = recorded(21, status=SnapshotStatus.LOST), recorded(22, status=SnapshotStatus.FAILED, cloud_id=None)
    assert prunable([failed, lost, never], (), NOW, SETTINGS) == [failed]


@given(
    ages=st.lists(st.integers(0, 4000), max_size=12),
    whys=st.lists(st.sampled_from(list(SnapshotReason)), min_size=12, max_size=12),
    statuses=st.lists(st.sampled_from(list(SnapshotStatus)), min_size=12, max_size=12),
    protected=st.sets(st.integers(20, 32)),
    keep=st.integers(0, 3),
)
def test_the_last_good_one_and_what_is_relied_on_always_stay(
    ages: list[int], whys: list[SnapshotReason], statuses: list[SnapshotStatus], protected: set[int], keep: int
) -> None:
    snapshots = [
        recorded(20 + number, created_at=NOW - timedelta(hours=age), why=whys[number], status=statuses[number])
        for number, age in enumerate(ages)
    ]
    needed = {RecordedSnapshotId(UUID(int=number)) for number in protected}
    settings = replace(SETTINGS, keep_last=keep, keep_daily_days=keep, keep_asked=timedelta(0))
    gone = {one.snapshot_id for one in prunable(snapshots, needed, NOW, settings)}
    assert not gone & needed
    good = [one for one in snapshots if one.status is SnapshotStatus.COMPLETED]
    if good:
        assert max(good, key=lambda one: one.created_at).created_at in {
            one.created_at for one in good if one.snapshot_id not in gone
        }


def test_the_last_one_that_lacks_nothing_stays_however_old_it_is() -> None:
    whole = recorded(20, created_at=NOW - timedelta(days=90))
    older = recorded(21, created_at=NOW - timedelta(days=91))
    lacking = [recorded(30 + day, created_at=NOW - timedelta(days=day), lacks="1: theirs") for day in range(4)]
    assert prunable([whole, older, *lacking], (), NOW, replace(SETTINGS, keep_daily_days=9)) == [older]


def test_a_disk_in_use_is_kept_only_for_who_has_it_and_not_twice_in_a_short_time() -> None:
    facts = held(ada())
    request = SnapshotDiskInUse(WORK, RESERVATION)
    changes = ask(request, facts)
    assert changes is not None
    assert (changes.operation.kind, changes.operation.reservation_id) == (OperationKind.SNAPSHOT, RESERVATION)
    assert ask(replace(request, reservation_id=new_reservation_id()), facts) is None
    assert ask(request, busy(facts, OperationKind.RESIZE)) is None
    recent = recorded(20, created_at=NOW - timedelta(hours=1))
    assert ask(request, replace(facts, snapshots=(recent,))) is None
    old = recorded(20, created_at=NOW - timedelta(hours=25))
    assert ask(request, replace(facts, snapshots=(old,))) is not None


def test_pruning_marks_what_goes_at_once_and_asks_for_nothing_otherwise() -> None:
    assert ask(PruneDisk(WORK), ada()) is None
    many = tuple(recorded(number) for number in range(20, 30))
    changes = ask(PruneDisk(WORK), ada(snapshots=many))
    assert changes is not None
    assert {one.status for one in changes.snapshots} == {SnapshotStatus.REMOVING}
    assert len(changes.snapshots) == 8
    assert ask(PruneDisk(WORK), busy(ada(snapshots=many), OperationKind.RESTORE)) is None
