"""What a site brings along or loses: volumes under names of their own, their snapshots, and volumes that are gone."""

from collections.abc import Callable
from datetime import timedelta

import httpx2
import pytest

from gpudev.adapters.postgres.database.roles import PROCESSOR, RECONCILER
from gpudev.adapters.postgres.disks.records import PostgresDiskRecords
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.disks.operations import DiskSettings
from gpudev.ports.cloud import RECORDED_TAG, Snapshot, SnapshotState
from gpudev.workflows.disks.reconcile_disks import DiskReconciliation
from support.api.disk_requests import Machine, ask, create, look, make_machine
from support.api.harness import Api
from support.clock import ManualClock
from support.disks.disk_queries import disk_history
from support.disks.disk_rows import add, all_rows
from support.paper_cloud import BEGINNING, PaperCloud


@pytest.fixture
def machine(api: Api) -> Machine:
    return make_machine(api, DiskSettings(zone="zone-a"))


async def reconcile(stores: Stores, machine: Machine, clock: ManualClock) -> None:
    """A pass over what the machine's cloud has now."""
    cloud = PaperCloud()
    cloud.made = list(machine.cloud.volumes_there.values())
    cloud.taken = list(machine.cloud.snapshots_there.values())
    report = await DiskReconciliation(cloud, PostgresDiskRecords(stores.pool), clock, by="test").run()
    assert report.succeeded, report.errors


# --- Who may import ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [PROCESSOR, RECONCILER])
async def test_the_roles_that_reconcile_may_import_volumes_of_known_and_unknown_users(
    stores: Stores, stores_of: Callable[[str], Stores], cloud: PaperCloud, clock: ManualClock, role: str
) -> None:
    await add(stores, "ada", "other")
    cloud.volume("vol-1", "ada", "work")
    cloud.volume("vol-2", "ghost", "work")
    cloud.snapshot("snap-1", "vol-1")
    theirs = PostgresDiskRecords(stores_of(role).pool)
    report = await DiskReconciliation(cloud, theirs, clock, by="test").run()
    assert (report.errors, report.statistics.created) == ([], 2)
    users = {user.username: user.is_active for name in ("ada", "ghost") if (user := await stores.users.find_user(name))}
    assert users == {"ada": True, "ghost": False}


# --- Names -------------------------------------------------------------------------------------------------------


async def test_volumes_whose_names_cannot_be_a_disks_are_imported_under_mapped_names(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    names = ("My_Data.v2", "my-data-v2", "MY DATA V2", "None", "数据", "x" * 70)
    for number, name in enumerate(names):
        cloud.volume(f"vol-{number}", disk=name, day=number)
    report = await reconciling.run()
    assert (report.errors, report.statistics.created) == ([], 6)
    rows = {row["ebs_volume_id"]: row["disk_name"] for row in await all_rows(stores)}
    assert rows["vol-1"] == "my-data-v2", "a name belongs to the volume that has it, however young"
    assert rows["vol-0"].startswith("my-data-v2-")
    assert rows["vol-2"].startswith("my-data-v2-")
    assert rows["vol-3"].startswith("none-")
    assert rows["vol-4"].startswith("disk-")
    assert len(set(rows.values())) == 6
    assert (await reconciling.run()).statistics.synced == 6
    (row,) = [row for row in await all_rows(stores) if row["ebs_volume_id"] == "vol-0"]
    (event,) = await disk_history(stores, row["disk_id"])
    assert "called 'My_Data.v2' in its tag" in event["message"]


async def test_a_mapped_name_is_plain_where_nobody_else_has_it_and_a_second_volume_of_the_name_is_a_duplicate(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    cloud.volume("vol-1", disk="My_Data", day=1)
    cloud.volume("vol-2", disk="My_Data", day=2)
    for _ in range(2):
        (duplicate,) = (await reconciling.run()).duplicates
        assert (duplicate.disk_name, duplicate.linked, duplicate.others) == ("my-data", "vol-1", ("vol-2",))
    assert [row["disk_name"] for row in await all_rows(stores)] == ["my-data"]


async def test_a_mapped_name_never_takes_a_disk_that_somebody_has_made_here(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, disk_name="my-data")
    await add(stores, disk_name="old-data", is_deleted=True)
    cloud.volume("vol-1", disk="My_Data")
    cloud.volume("vol-2", disk="Old_Data")
    assert (await reconciling.run()).statistics.created == 2
    linked = {row["disk_name"]: row["ebs_volume_id"] for row in await all_rows(stores) if not row["is_deleted"]}
    assert linked.pop("my-data") is None
    assert linked.pop("old-data") == "vol-2"
    ((name, volume_id),) = linked.items()
    assert (name.startswith("my-data-"), volume_id) == (True, "vol-1")


# --- Snapshots ---------------------------------------------------------------------------------------------------


async def test_an_imported_disk_shows_its_snapshots_and_can_be_restored_from_them(
    ada: httpx2.AsyncClient, stores: Stores, machine: Machine, clock: ManualClock
) -> None:
    volume_id = machine.cloud.give_volume({"gpu-dev-user": "ada", "disk-name": "Old_Work"}, "today")
    for day in (1, 2):
        taken = Snapshot(f"snap-old-{day}", volume_id, SnapshotState.COMPLETED, BEGINNING + timedelta(days=day), 10)
        machine.cloud.snapshots_there[taken.snapshot_id] = taken
        machine.cloud.contents[taken.snapshot_id] = f"day {day}"
    await reconcile(stores, machine, clock)
    shown = await look(ada, "old-work")
    assert (shown["state"], shown["snapshot_count"], shown["last_snapshot_at"][:10]) == ("free", 2, "2026-01-03")
    assert [(each["why"], each["usable"]) for each in shown["snapshots"]] == [("imported", True)] * 2
    await reconcile(stores, machine, clock)
    assert await look(ada, "old-work") == shown, "a second pass records nothing twice"
    await ask(ada, "/old-work/restore", {"snapshot_id": shown["snapshots"][1]["snapshot_id"]})
    await machine.run()
    restored = await look(ada, "old-work")
    assert machine.cloud.contents[restored["volume_id"]] == "day 1"
    assert [each["why"] for each in restored["snapshots"]] == ["before restore", "imported", "imported"]


async def test_snapshots_of_ours_are_never_imported_and_imported_ones_never_removed(
    ada: httpx2.AsyncClient, stores: Stores, machine: Machine, clock: ManualClock
) -> None:
    await create(ada)
    await machine.stay(ada, "data", "today")
    (ours,) = machine.cloud.snapshots_there
    assert RECORDED_TAG in machine.cloud.snapshots_there[ours].tags
    machine.cloud.copy_by_a_scanner(ours)
    volume_id = (await look(ada, "data"))["volume_id"]
    foreign = Snapshot("snap-foreign", volume_id, SnapshotState.COMPLETED, BEGINNING, 10)
    machine.cloud.snapshots_there[foreign.snapshot_id] = foreign
    machine.cloud.contents[foreign.snapshot_id] = "old"
    await reconcile(stores, machine, clock)
    assert [each["why"] for each in (await look(ada, "data"))["snapshots"]] == ["end of reservation", "imported"]
    assert (await ada.delete("/v1/disks/data")).status_code == 202
    await machine.run()
    clock.move(days=200)
    await machine.actor.request_upkeep()
    await machine.run()
    assert "snap-foreign" in machine.cloud.snapshots_there
    assert ours not in machine.cloud.snapshots_there


async def test_a_snapshot_that_is_under_way_is_followed_to_its_end(
    ada: httpx2.AsyncClient, stores: Stores, machine: Machine, clock: ManualClock
) -> None:
    volume_id = machine.cloud.give_volume({"gpu-dev-user": "ada", "disk-name": "work"}, "today")
    machine.cloud.snapshots_there["snap-1"] = Snapshot("snap-1", volume_id, SnapshotState.PENDING, BEGINNING, 10)
    await reconcile(stores, machine, clock)
    assert (await look(ada, "work"))["is_backing_up"]
    assert [each.cloud_id for each in await machine.actor.store.list_pending_snapshots()] == ["snap-1"]


# --- Volumes that are gone, or attached by others ----------------------------------------------------------------


async def test_a_disk_whose_volume_is_gone_says_so_to_its_owner_and_can_be_restored(
    ada: httpx2.AsyncClient, stores: Stores, machine: Machine, clock: ManualClock
) -> None:
    volume_id = machine.cloud.give_volume({"gpu-dev-user": "ada", "disk-name": "work"}, "today")
    taken = Snapshot("snap-old", volume_id, SnapshotState.COMPLETED, BEGINNING, 10)
    machine.cloud.snapshots_there["snap-old"] = taken
    machine.cloud.contents["snap-old"] = "yesterday"
    await reconcile(stores, machine, clock)
    volume = machine.cloud.volumes_there.pop(volume_id)
    gone_at = clock.now()
    for _ in range(3):
        await reconcile(stores, machine, clock)
        clock.move(seconds=300)
    shown = await look(ada, "work")
    assert (shown["state"], shown["in_use"], shown["volume_id"]) == ("missing", False, volume_id)
    assert shown["volume_missing_since"][:19] == gone_at.isoformat()[:19]
    lines = [each["message"] for each in shown["history"] if "missing" in each["message"]]
    assert lines == [f"its volume {volume_id} is missing"], "once"
    machine.cloud.volumes_there[volume_id] = volume
    await reconcile(stores, machine, clock)
    assert (await look(ada, "work"))["state"] == "free", "it is back"
    del machine.cloud.volumes_there[volume_id]
    await reconcile(stores, machine, clock)
    await ask(ada, "/work/restore", {"snapshot_id": shown["snapshots"][0]["snapshot_id"]})
    assert (await look(ada, "work"))["state"] == "busy"
    await machine.run()
    restored = await look(ada, "work")
    assert (restored["state"], restored["volume_missing_since"]) == ("free", None)
    assert machine.cloud.contents[restored["volume_id"]] == "yesterday"


async def test_a_dry_run_names_every_disk_without_a_volume(
    stores: Stores, cloud: PaperCloud, reconciling: DiskReconciliation
) -> None:
    await add(stores, disk_name="gone", ebs_volume_id="vol-1")
    await add(stores, disk_name="new")
    before = await all_rows(stores)
    expected = ["ada/gone: its volume vol-1 is missing", "ada/new: it has no volume yet"]
    report = await reconciling.run(dry_run=True)
    assert (sorted(report.without_volume), report.statistics.orphaned_db_active) == (expected, 2)
    assert await all_rows(stores) == before
    await reconciling.run()
    again = await reconciling.run(dry_run=True)
    assert sorted(again.without_volume)[0].startswith(f"{expected[0]} since 20"), "also when nothing is left to change"


async def test_a_disk_that_others_have_attached_is_in_use(
    ada: httpx2.AsyncClient, stores: Stores, machine: Machine, clock: ManualClock
) -> None:
    volume_id = machine.cloud.give_volume({"gpu-dev-user": "ada", "disk-name": "work"}, "today")
    machine.cloud.attach(volume_id, "i-by-hand")
    await reconcile(stores, machine, clock)
    shown = await look(ada, "work")
    assert (shown["state"], shown["in_use"], shown["reservation_id"]) == ("in use", True, None)
    machine.cloud.detach(volume_id)
    await reconcile(stores, machine, clock)
    assert (await look(ada, "work"))["state"] == "free"
