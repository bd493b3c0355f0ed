"""What is decided about disks, whatever the cloud and the records say: properties, and who counts as an orphan."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.planning.disks.reconcile_disks import DiskReconcilePlan, find_orphaned_storage, plan_disk_writes
from gpudev.ports.cloud import DISK_ID_TAG, Snapshot, SnapshotState, Volume
from gpudev.ports.disks import DiskRecord, ImportDisk, UpdateDisk
from gpudev.settings import ReconcileSettings
from support.paper_cloud import BEGINNING, PaperCloud

NAMES = ("work", "data")
USERS = ("ada", "bob", "ghost")
NOW = BEGINNING + timedelta(days=30)
VOLUME_IDS = ("vol-1", "vol-2", "vol-3", "vol-4")


@st.composite
def volumes(draw: st.DrawFn) -> list[Volume]:
    found = []
    for volume_id in draw(st.lists(st.sampled_from(VOLUME_IDS), unique=True)):
        tags = {
            "gpu-dev-user": draw(st.sampled_from((*USERS, "", "not a name"))),
            draw(st.sampled_from(("disk-name", "disk_name", "other"))): draw(
                st.sampled_from((*NAMES, "", "No Name", "Work"))
            ),
        }
        if draw(st.integers(0, 3)) == 0:
            tags[DISK_ID_TAG] = str(UUID(int=draw(st.integers(1, 4))))
        at = BEGINNING + timedelta(days=draw(st.integers(0, 3)))
        attached = ("i-1",) if draw(st.booleans()) else ()
        found.append(Volume(volume_id, draw(st.sampled_from((10, 20))), at, None, attached, tags))
    return found


@st.composite
def snapshots(draw: st.DrawFn) -> list[Snapshot]:
    return [
        Snapshot(
            f"snap-{number}",
            draw(st.sampled_from(VOLUME_IDS)),
            draw(st.sampled_from(list(SnapshotState))),
            BEGINNING + timedelta(days=draw(st.integers(4, 9))),
            10,
        )
        for number in range(draw(st.integers(0, 4)))
    ]


@st.composite
def records(draw: st.DrawFn) -> list[DiskRecord]:
    """As the database allows them: one living disk for each name of a user."""
    found: list[DiskRecord] = []
    for number in range(1, 1 + draw(st.integers(0, 4))):
        username, disk_name = draw(st.sampled_from(USERS[:2])), draw(st.sampled_from(NAMES))
        taken = any((one.username, one.disk_name, one.is_deleted) == (username, disk_name, False) for one in found)
        reservation = draw(st.sampled_from((None, ReservationId(UUID(int=77)))))
        working = draw(st.integers(0, 5)) == 0
        found.append(
            DiskRecord(
                DiskId(UUID(int=number)),
                UserId(USERS.index(username)),
                username,
                disk_name,
                BEGINNING,
                volume_id=draw(st.sampled_from((None, *VOLUME_IDS))),
                size_gb=draw(st.sampled_from((None, 10, 20))),
                in_use=draw(st.booleans()),
                reservation_id=reservation,
                is_held=reservation is not None and draw(st.booleans()),
                is_deleted=taken or draw(st.integers(0, 3)) == 0,
                snapshot_count=draw(st.integers(0, 2)),
                operation_id=UUID(int=5) if working else None,
                operation_status="running" if working else None,
                mark=number,
            )
        )
    return found


def applied(plan: DiskReconcilePlan, before: Sequence[DiskRecord]) -> list[DiskRecord]:
    """The records as they are when all of it is written."""
    after = {record.disk_id: record for record in before}
    for number, write in enumerate(plan.writes):
        if isinstance(write, UpdateDisk):
            names = {"ebs_volume_id": "volume_id"}
            changes = {names.get(column, column): new for column, (_, new) in write.changes.items()}
            after[write.disk_id] = replace(after[write.disk_id], **changes)
        else:
            fields = {name: value for name, value in write.fields.items() if name != "ebs_volume_id"}
            disk_id = DiskId(UUID(int=1000 + number))
            after[disk_id] = DiskRecord(
                disk_id,
                UserId(9),
                write.username,
                write.disk_name,
                volume_id=write.fields["ebs_volume_id"],
                **fields,
            )
    return list(after.values())


@settings(max_examples=300, deadline=None)
@given(volumes(), st.one_of(st.none(), snapshots()), records())
def test_whatever_there_is_one_pass_is_enough_and_nothing_is_lost_or_handed_over(
    there: list[Volume], taken: list[Snapshot] | None, known: list[DiskRecord]
) -> None:
    plan = plan_disk_writes(there, taken, known, NOW)
    after = applied(plan, known)
    by_id = {record.disk_id: record for record in known}
    owners = {volume.volume_id: volume.owner for volume in there}
    assert plan_disk_writes(there, taken, after, NOW).writes == [], "a second pass finds nothing to do"
    assert len(after) >= len(known), "no record goes"
    living = [(record.username, record.disk_name) for record in after if not record.is_deleted]
    assert len(living) == len(set(living)), "one living disk for each name of a user"
    for record in after:
        before = by_id.get(record.disk_id)
        if before is None:
            assert record.username == owners[record.volume_id or ""], "imported for whom its tag names"
            continue
        assert before.volume_id in (None, record.volume_id), "a link is never exchanged"
        if before.volume_id is None and record.volume_id is not None:
            assert record.username == owners[record.volume_id], "linked for whom its tag names"
        if before.is_being_worked_on:
            assert record == before
        if before.is_held:
            assert record.reservation_id == before.reservation_id
        if taken is None:
            assert (record.snapshot_count, record.is_backing_up) == (before.snapshot_count, before.is_backing_up)


def test_of_several_volumes_called_like_a_deleted_disk_it_gets_the_oldest_and_the_next_is_imported_at_once() -> None:
    tags = {"gpu-dev-user": "ada", "disk-name": "work"}
    there = [Volume(volume_id, 10, BEGINNING, None, (), tags) for volume_id in VOLUME_IDS]
    known = [DiskRecord(DiskId(UUID(int=1)), UserId(0), "ada", "work", BEGINNING, is_deleted=True, mark=1)]
    plan = plan_disk_writes(there, None, known, NOW)
    assert [(one.volume_id, one.is_deleted) for one in applied(plan, known)] == [("vol-1", True), ("vol-2", False)]
    assert [(one.linked, one.others) for one in plan.duplicates] == [("vol-2", ("vol-3", "vol-4"))]
    assert plan_disk_writes(there, None, applied(plan, known), NOW).writes == []


@settings(max_examples=100, deadline=None)
@given(volumes(), snapshots(), records())
def test_every_volume_is_linked_imported_or_reported(
    there: list[Volume], taken: list[Snapshot], known: list[DiskRecord]
) -> None:
    plan = plan_disk_writes(there, taken, known, NOW)
    accounted = {record.volume_id for record in known}
    accounted |= {one.volume_id for one in plan.skipped} | {other for one in plan.duplicates for other in one.others}
    accounted |= {write.fields["ebs_volume_id"] for write in plan.writes if isinstance(write, ImportDisk)}
    accounted |= {
        write.changes["ebs_volume_id"][1]
        for write in plan.writes
        if isinstance(write, UpdateDisk) and "ebs_volume_id" in write.changes
    }
    working_on = {(record.username, record.disk_name) for record in plan.left_alone}
    for volume in there:
        named_in_an_error = any(volume.volume_id in error for error in plan.errors)
        left_alone = any(record.is_being_worked_on for record in known) and bool(working_on)
        assert volume.volume_id in accounted or named_in_an_error or left_alone, volume


def test_orphans_are_what_nobody_uses_and_the_dearest_comes_first() -> None:
    cloud = PaperCloud()
    cloud.volume("vol-used", disk="used")
    cloud.volume("vol-deleted", disk="deleted", size_gb=50)
    cloud.volume("vol-twin", disk="used", size_gb=300, day=2)
    cloud.volume("vol-busy", disk="used", attached=True, day=3)
    cloud.volume("vol-new", "bob", "new", size_gb=20)
    cloud.snapshot("snap-used", "vol-used")
    cloud.snapshot("snap-lost", "vol-long-gone")

    def record(number: int, name: str, volume_id: str, **more: bool) -> DiskRecord:
        return DiskRecord(DiskId(UUID(int=number)), UserId(1), "ada", name, BEGINNING, volume_id=volume_id, **more)  # type: ignore[arg-type]

    known = [record(1, "used", "vol-used"), record(2, "deleted", "vol-deleted", is_deleted=True)]
    found = find_orphaned_storage(cloud.made, cloud.taken, known, ReconcileSettings(), BEGINNING + timedelta(days=30))
    assert [(one.id, one.monthly_cost, one.age.days) for one in found] == [
        ("vol-twin", 24.0, 28),
        ("snap-lost", 5.0, 20),
        ("vol-deleted", 4.0, 30),
        ("vol-new", 1.6, 30),
    ]
    assert "beside vol-used" in found[0].reason


def test_what_we_made_and_still_need_is_no_orphan() -> None:
    """A disk that has moved: its older snapshots are of a volume that is gone, and the one it left is still there."""
    cloud = PaperCloud()
    cloud.volume("vol-left", disk="data")
    cloud.volume("vol-now", disk="data", day=2)
    cloud.snapshot("snap-ours", "vol-gone")
    cloud.snapshot("snap-copied", "vol-gone")
    disk = DiskRecord(DiskId(UUID(int=1)), UserId(1), "ada", "data", BEGINNING, volume_id="vol-now")
    ours = {"snap-ours", "vol-left"}
    found = find_orphaned_storage(
        cloud.made, cloud.taken, [disk], ReconcileSettings(), BEGINNING + timedelta(days=30), ours=ours
    )
    assert [one.id for one in found] == ["snap-copied"]
