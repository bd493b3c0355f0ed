"""Disks against volumes on a real database: the specification's edge cases, and what must never happen."""

from typing import Any
from uuid import uuid4

import pytest

from gpudev.adapters.postgres.disks.records import PostgresDiskRecords
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import DISK_ID_TAG
from gpudev.settings import ReconcileSettings
from gpudev.workflows.disks.reconcile_disks import DiskReconciliation
from support.disks.disk_rows import add, all_rows, counts, only
from support.paper_cloud import PaperCloud
from support.processor_world import World

# --- Edge cases of the specification -----------------------------------------------------------------------------


async def test_multiple_volumes_for_the_same_user_and_disk_name_link_to_the_oldest_and_are_reported(
    cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    cloud.volume("vol-b", day=2)
    cloud.volume("vol-a", day=1)
    cloud.volume("vol-c", day=3)
    report = await reconciling.run()
    assert (await only(records)).volume_id == "vol-a"
    (duplicate,) = report.duplicates
    assert (duplicate.linked, duplicate.others) == ("vol-a", ("vol-b", "vol-c"))


async def test_a_recorded_link_is_never_exchanged_for_an_older_volume_of_the_same_name(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    await add(stores, ebs_volume_id="vol-b")
    cloud.volume("vol-a", day=1)
    cloud.volume("vol-b", day=2)
    report = await reconciling.run()
    assert (await only(records)).volume_id == "vol-b"
    assert report.duplicates[0].others == ("vol-a",)


async def test_a_volume_of_the_name_of_one_that_is_gone_is_reported_and_does_not_take_its_place(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    await add(stores, ebs_volume_id="vol-gone")
    cloud.volume("vol-copy", day=2)
    report = await reconciling.run()
    assert (await only(records)).volume_id == "vol-gone"
    assert (report.duplicates[0].linked, report.duplicates[0].others) == (None, ("vol-copy",))
    assert report.statistics.orphaned_db_active == 1


@pytest.mark.parametrize(("owner", "disk", "reason"), [
    ("ada", None, "disk-name or disk_name"),
    (None, "work", "gpu-dev-user"),
    ("ada", "", "disk-name or disk_name"),
])  # fmt: skip
async def test_a_volume_missing_required_tags_is_skipped_with_a_warning(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, owner: str, disk: str, reason: str
) -> None:
    cloud.volume("vol-1", owner, disk)
    report = await reconciling.run()
    assert await all_rows(stores) == []
    assert reason in report.skipped[0].reason
    assert report.succeeded


async def test_a_volume_may_say_disk_name_either_way(
    cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    cloud.volume("vol-1", disk=None, disk_name="work")
    await reconciling.run()
    assert (await only(records)).disk_name == "work"


async def test_snapshot_query_failures_leave_snapshot_fields_alone_and_the_rest_goes_on(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, ebs_volume_id="vol-1", size_gb=100, snapshot_count=4, is_backing_up=True)
    cloud.volume("vol-1", size_gb=300)
    cloud.refuse_snapshots = Unavailable("request limit exceeded")
    report = await reconciling.run()
    (row,) = await all_rows(stores)
    assert (row["size_gb"], row["snapshot_count"], row["is_backing_up"]) == (300, 4, True)
    assert not report.succeeded
    assert report.statistics.errors == 1
    assert "request limit exceeded" in report.errors[0]


async def test_database_constraint_violations_are_counted_and_the_others_are_written(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    for number in range(3):
        await add(stores, disk_name=f"disk-{number}", ebs_volume_id=f"vol-{number}", size_gb=100)
        cloud.volume(f"vol-{number}", disk=f"disk-{number}", size_gb=200 + number)
    async with stores.pool.acquire() as connection:
        await connection.execute("ALTER TABLE disks ADD CHECK (size_gb <> 201)")
    report = await reconciling.run()
    assert [row["size_gb"] for row in sorted(await all_rows(stores), key=lambda row: str(row["disk_name"]))] == [
        200,
        100,
        202,
    ]
    assert (report.statistics.updated, report.statistics.errors) == (2, 1)
    assert "ada/disk-1" in report.errors[0]


# --- What must never happen --------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [Unavailable("page 3 did not come"), ClusterError("ec2:DescribeVolumes denied")])
async def test_an_incomplete_volume_listing_stops_before_any_write(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, refusal: Unavailable
) -> None:
    await add(stores, ebs_volume_id="vol-1", in_use=True, reservation_id=str(uuid4()))
    before = await all_rows(stores)
    cloud.refuse_volumes = refusal
    report = await reconciling.run()
    assert await all_rows(stores) == before
    assert not report.succeeded
    assert counts(report) == {"errors": 1}


async def test_a_disk_of_a_reservation_that_is_not_over_keeps_it_though_nothing_is_attached(
    reconciler_world: World, cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    reconciler_world.cluster.ready_at_once = False
    rid = await reconciler_world.submit(1, disk="work")
    await reconciler_world.turn()
    cloud.volume("vol-1")
    await reconciling.run()
    held = await only(records)
    assert (held.volume_id, held.reservation_id, held.in_use) == ("vol-1", rid, True)
    await reconciler_world.cancel(rid)
    reconciler_world.cluster.slow_to_go = True
    await reconciler_world.turn()
    await reconciling.run()
    assert (await only(records)).reservation_id == rid, "it is still being cleared away"


async def test_a_reservation_that_is_over_is_cleared_only_when_the_volume_is_unattached(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    over = uuid4()
    await add(stores, ebs_volume_id="vol-1", size_gb=100, in_use=True, reservation_id=str(over))
    cloud.volume("vol-1", attached=True)
    await reconciling.run()
    assert (await only(records)).reservation_id == over
    cloud.made.clear()
    cloud.volume("vol-1")
    await reconciling.run()
    assert ((await only(records)).reservation_id, (await only(records)).in_use) == (None, False)


async def test_a_volume_of_an_unknown_user_is_imported_under_a_new_inactive_user(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    await add(stores, "ada", "work", ebs_volume_id="vol-1", size_gb=100)
    cloud.volume("vol-1", "ada")
    cloud.volume("vol-2", "ghost")
    await reconciling.run()
    ghost = await stores.users.find_user("ghost")
    assert ghost is not None
    assert not ghost.is_active
    assert {(one.username, one.volume_id) for one in await records.list_records()} == {
        ("ada", "vol-1"),
        ("ghost", "vol-2"),
    }


async def test_a_disk_with_an_operation_in_flight_is_left_alone(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, ebs_volume_id="vol-1", size_gb=100, operation_id=str(uuid4()), operation_status="resizing")
    before = await all_rows(stores)
    cloud.volume("vol-1", size_gb=200)
    report = await reconciling.run()
    assert await all_rows(stores) == before
    assert "under way" in report.left_alone[0]


async def test_a_row_that_somebody_writes_meanwhile_is_left_to_the_next_pass(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, ebs_volume_id="vol-1", size_gb=100)
    cloud.volume("vol-1", size_gb=200)
    listed = cloud.snapshots

    async def meanwhile() -> Any:
        async with stores.pool.acquire() as connection:
            await connection.execute("UPDATE disks SET operation_id = gen_random_uuid(), operation_status = 'growing'")
        return await listed()

    cloud.snapshots = meanwhile  # type: ignore[method-assign]
    report = await reconciling.run()
    assert (await all_rows(stores))[0]["size_gb"] == 100
    assert "changed by another writer" in report.left_alone[0]
    assert report.succeeded


async def test_a_volume_that_carries_our_own_id_is_known_by_it(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    disk_id = await add(stores, disk_name="renamed")
    volume = cloud.volume("vol-1", disk="old-name")
    cloud.made[0] = type(volume)(
        volume.volume_id, 100, volume.created_at, None, (), {**volume.tags, DISK_ID_TAG: str(disk_id)}
    )
    await reconciling.run()
    assert ((await only(records)).disk_name, (await only(records)).volume_id) == ("renamed", "vol-1")


async def test_anothers_disk_id_in_a_tag_hands_nothing_over(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation, records: PostgresDiskRecords
) -> None:
    hers = await add(stores, "ada", "work")
    volume = cloud.volume("vol-1", "eve", "loot")
    cloud.made[0] = type(volume)(
        volume.volume_id, 100, volume.created_at, None, (), {**volume.tags, DISK_ID_TAG: str(hers)}
    )
    await reconciling.run()
    linked = {one.username: one.volume_id for one in await records.list_records()}
    assert linked == {"ada": None, "eve": "vol-1"}


async def test_a_dry_run_shows_every_change_and_writes_nothing(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, disk_name="grown", ebs_volume_id="vol-1", size_gb=100)
    cloud.volume("vol-1", disk="grown", size_gb=200)
    cloud.volume("vol-2", "ghost", "new")
    before = await all_rows(stores)
    dry = await reconciling.run(dry_run=True)
    assert await all_rows(stores) == before
    assert await stores.users.find_user("ghost") is None
    real = await reconciling.run()
    assert dry.changes == real.changes
    assert dry.statistics == real.statistics
    assert {(one.kind, one.disk_name) for one in dry.changes} == {("update", "grown"), ("import", "new")}


async def test_recorded_snapshots_of_a_disk_that_moved_are_not_reported_as_orphans(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    disk_id = await add(stores, ebs_volume_id="vol-now", size_gb=100)
    cloud.volume("vol-now")
    for name in ("snap-ours", "snap-removed", "snap-strange"):
        cloud.snapshot(name, "vol-before")
    async with stores.pool.transaction() as connection:
        operation_id = await connection.fetchval(
            "INSERT INTO disk_operations (operation_id, kind, user_id, disk_id, state, step, blocks, asked_at, "
            "finished_at) SELECT gen_random_uuid(), 'put_away', user_id, disk_id, 'done', '', '{}', now(), now() "
            "FROM disks WHERE disk_id = $1 RETURNING operation_id",
            disk_id,
        )
        for name, status in (("snap-ours", "completed"), ("snap-removed", "removed")):
            await connection.execute(
                "INSERT INTO disk_snapshots (snapshot_id, disk_id, operation_id, volume_id, cloud_id, why, status, "
                "created_at) VALUES (gen_random_uuid(), $1, $2, 'vol-before', $3, 'asked', $4, now())",
                disk_id,
                operation_id,
                name,
                status,
            )
    assert [one.id for one in await reconciling.find_orphans(ReconcileSettings())] == ["snap-removed", "snap-strange"]
