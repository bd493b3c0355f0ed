"""Disks against volumes on a real database: the three rules, what is and what is not reconciled, the statistics."""

from datetime import timedelta
from uuid import uuid4

from gpudev.adapters.postgres.stores import Stores
from gpudev.ports.cloud import SnapshotState
from gpudev.workflows.disks.reconcile_disks import DiskReconciliation
from support.clock import ManualClock
from support.disks.disk_queries import disk_history
from support.disks.disk_rows import add, all_rows, counts
from support.paper_cloud import BEGINNING, PaperCloud

# --- The three rules ---------------------------------------------------------------------------------------------


async def test_rule_1_a_volume_that_is_not_recorded_is_imported(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, disk_name="other", ebs_volume_id="vol-0", size_gb=100)
    cloud.volume("vol-0", disk="other")
    cloud.volume("vol-1", size_gb=250, attached=True, day=3)
    cloud.snapshot("snap-1", "vol-1", day=4)
    cloud.snapshot("snap-2", "vol-1", day=5, state=SnapshotState.PENDING)
    report = await reconciling.run()
    assert report.succeeded
    (row,) = [one for one in await all_rows(stores) if one["disk_name"] == "work"]
    assert (row["ebs_volume_id"], row["size_gb"], row["in_use"], row["is_deleted"]) == ("vol-1", 250, True, False)
    assert (row["operation_id"], row["last_used"], row["reservation_id"]) == (None, None, None)
    assert (row["snapshot_count"], row["is_backing_up"]) == (2, True)
    assert row["last_snapshot_at"] == BEGINNING + timedelta(days=5)
    user = await stores.users.find_user("ada")
    assert user is not None
    assert (row["user_id"], user.is_active) == (user.user_id, True)
    event, snapshots = await disk_history(stores, row["disk_id"])
    assert (event["kind"], event["changes"]["size_gb"]) == ("imported", [None, 250])
    assert snapshots["message"] == "imported 2 snapshots of volume vol-1: snap-1, snap-2"


async def test_rule_2a_an_active_record_whose_volume_is_gone_is_kept_and_set_free(
    stores: Stores, reconciling: DiskReconciliation, clock: ManualClock
) -> None:
    gone = await add(stores, ebs_volume_id="vol-1", size_gb=100, in_use=True, reservation_id=str(uuid4()))
    (before,) = await all_rows(stores)
    report = await reconciling.run()
    (after,) = await all_rows(stores)
    assert after == {**before, "in_use": False, "reservation_id": None, "volume_missing_since": clock.now()}
    assert counts(report) == {"db_records": 1, "updated": 1, "orphaned_db_active": 1}
    assert after["disk_id"] == gone


async def test_rule_2b_a_deleted_record_whose_volume_is_gone_stays_as_it_is(
    stores: Stores, reconciling: DiskReconciliation
) -> None:
    await add(stores, ebs_volume_id="vol-1", is_deleted=True, in_use=True, reservation_id=str(uuid4()))
    before = await all_rows(stores)
    report = await reconciling.run()
    assert await all_rows(stores) == before
    assert counts(report) == {"db_records": 1, "orphaned_db_deleted": 1}


async def test_rule_3_what_is_in_both_follows_the_cloud_and_what_is_ours_stays(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    disk_id = await add(
        stores,
        size_gb=100,
        in_use=False,
        reservation_id=str(uuid4()),
        snapshot_count=7,
        is_backing_up=True,
        last_used=BEGINNING,
        latest_snapshot_content_s3="s3://contents",
        operation_id=str(uuid4()),
        operation_status="failed",
        operation_error="no room",
    )
    (before,) = await all_rows(stores)
    cloud.volume("vol-1", size_gb=200)
    cloud.snapshot("snap-1", "vol-1", day=8)
    report = await reconciling.run()
    (after,) = await all_rows(stores)
    assert after == before | {
        "ebs_volume_id": "vol-1",
        "zone": "zone-a",
        "size_gb": 200,
        "in_use": False,
        "reservation_id": None,
        "snapshot_count": 1,
        "is_backing_up": False,
        "last_snapshot_at": BEGINNING + timedelta(days=8),
    }
    assert counts(report) == {"aws_volumes": 1, "db_records": 1, "updated": 1}
    event, snapshots = await disk_history(stores, disk_id)  # type: ignore[arg-type]
    assert (event["kind"], snapshots["kind"]) == ("reconciled", "imported")
    assert event["changes"]["size_gb"] == [100, 200]
    assert event["changes"]["ebs_volume_id"] == [None, "vol-1"]
    assert "in_use" not in event["changes"]


async def test_a_deleted_disk_whose_volume_is_kept_follows_the_cloud_and_stays_deleted(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, ebs_volume_id="vol-1", size_gb=100, is_deleted=True)
    cloud.volume("vol-1", size_gb=200)
    await reconciling.run()
    (after,) = await all_rows(stores)
    assert (after["size_gb"], after["is_deleted"]) == (200, True)


async def test_a_new_disk_of_a_deleted_ones_name_is_imported_beside_it(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, ebs_volume_id="vol-1", is_deleted=True)
    cloud.volume("vol-2", day=9)
    await reconciling.run()
    assert {(row["ebs_volume_id"], row["is_deleted"]) for row in await all_rows(stores)} == {
        ("vol-1", True),
        ("vol-2", False),
    }


# --- Statistics --------------------------------------------------------------------------------------------------


async def test_the_eight_statistics(stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation) -> None:
    await add(stores, disk_name="same", ebs_volume_id="vol-same", size_gb=100, zone="zone-a")
    await add(stores, disk_name="grown", ebs_volume_id="vol-grown", size_gb=100)
    await add(stores, disk_name="gone", ebs_volume_id="vol-gone")
    await add(stores, disk_name="deleted", ebs_volume_id="vol-deleted", is_deleted=True)
    cloud.volume("vol-same", disk="same")
    cloud.volume("vol-grown", disk="grown", size_gb=300)
    cloud.volume("vol-new", disk="new")
    cloud.volume("vol-odd", owner="not a user")
    assert counts(await reconciling.run()) == {
        "aws_volumes": 4,
        "db_records": 4,
        "synced": 1,
        "updated": 2,
        "created": 1,
        "errors": 1,
        "orphaned_db_active": 1,
        "orphaned_db_deleted": 1,
    }


async def test_a_second_pass_finds_nothing_to_do(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    for number in range(5):
        cloud.volume(f"vol-{number}", disk=f"disk-{number}")
    await reconciling.run()
    before = await all_rows(stores)
    assert counts(await reconciling.run()) == {"aws_volumes": 5, "db_records": 5, "synced": 5}
    assert await all_rows(stores) == before
