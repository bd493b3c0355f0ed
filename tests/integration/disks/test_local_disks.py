"""Disks on one machine: folders that come back with their files, also those from before there were volumes."""

import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpudev.adapters.local.cloud import LocalCloud
from gpudev.adapters.local.volumes import tree_copy
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_disk_reconciler, make_processor, open_disk_reconciler
from gpudev.domain.cluster import Node
from gpudev.domain.disks.operations import (
    CloneDisk,
    DeleteDisk,
    DiskRequest,
    DiskSettings,
    DiskState,
    Operation,
    OperationId,
    OperationState,
    PurgeDisk,
    RestoreDisk,
    SnapshotDisk,
    SnapshotStatus,
)
from gpudev.domain.ids import ReservationId, new_disk_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.processor.disk_worker import DiskWorker
from gpudev.settings import Settings
from gpudev.workflows.disks.operations import DiskOperations
from gpudev.workflows.disks.reconcile_disks import DiskAdoption
from support.clock import ManualClock
from support.disks.disk_queries import disks_of, find_contents
from support.paper_cluster import PaperCluster
from support.polling import eventually_async
from support.processor_world import World

DISKS = DiskSettings(zone="this-machine")


class LocalDisks(World):
    """Dev servers on paper, with homes in real folders."""

    cloud: LocalCloud
    work: DiskWorker

    async def go_on(self, times: int = 3) -> None:
        for _ in range(times):
            await self.turn(1)
            await self.work.run_round()
            await self.work.wait_idle()
            self.clock.move(seconds=3)

    async def start(self, disk: str = "data") -> ReservationId:
        rid = await self.submit(8, disk=disk)
        await self.go_on()
        assert await self.status(rid) is Status.ACTIVE
        return rid

    async def end(self, rid: ReservationId) -> None:
        await self.cancel(rid)
        await self.go_on(2)
        await eventually_async(self._nothing_is_being_copied)  # by a thread, in real time
        assert (await self.get(rid)).is_released

    async def _nothing_is_being_copied(self) -> bool:
        await self.go_on(1)
        disks = await disks_of(self.stores, await self.user())
        snapshots = [one for disk in disks for one in await self.stores.disk_operations.snapshots(disk.disk_id)]
        return all(one.status is not SnapshotStatus.PENDING for one in snapshots)

    def home(self, rid: ReservationId) -> Path:
        volume = self.cluster.specs[rid].volume
        assert volume is not None
        return self.settings.state_dir / "disks" / volume.volume_id

    async def disk(self, name: str = "data") -> DiskState:
        disks = await disks_of(self.stores, await self.user())
        return next(one for one in disks if one.name == name)

    async def old_disk(self, name: str = "data") -> Path:
        """A row that a submit has made, and the folder that a dev server of an earlier version left."""
        rid = await self.submit(8, disk=name)
        await self.cancel(rid)
        await self.turn()
        home = self.settings.state_dir / "disks" / str((await self.disk(name)).disk_id)
        home.mkdir(parents=True)
        (home / "thesis").write_text("from before")
        return home

    async def adopt(self) -> int:
        return await DiskAdoption(self.stores.unlinked_disks, self.cloud, self.clock, DISKS).adopt_all()

    async def ask(self, request: DiskRequest) -> None:
        operations = DiskOperations(self.stores.disk_operations, self.cloud, self.clock, DISKS)
        asked = await operations.request_operation(await self.user(), request)
        assert asked is not None
        done = await eventually_async(lambda: self._finished(asked.operation_id))  # copied by a thread, in real time
        assert done.state is OperationState.DONE, done

    async def _finished(self, operation_id: OperationId) -> Operation | None:
        await self.work.run_round()
        await self.work.wait_idle()
        self.clock.move(seconds=1)
        operation = await self.operation(operation_id)
        return operation if operation.state.is_finished else None

    async def operation(self, operation_id: OperationId) -> Operation:
        found = await self.stores.disk_operations.find_operation(operation_id)
        assert found is not None
        return found


@pytest.fixture
async def local(stores: Stores, clock: ManualClock, settings: Settings) -> AsyncIterator[LocalDisks]:
    cloud = LocalCloud(settings.state_dir, clock)
    await cloud.start()
    cluster = PaperCluster([Node("node-1", "h100", 8)], clock)
    work = make_disk_reconciler(stores, cloud, clock, DISKS)
    processor = make_processor(stores, cluster, clock, settings.timing, disks=work)
    world = LocalDisks(stores, cluster, clock, processor, settings)
    world.cloud, world.work = cloud, work
    yield world
    await processor.effects.cancel()
    await work.close()
    await cloud.close()


async def test_files_are_there_again_and_what_was_in_a_snapshot_is_kept(local: LocalDisks) -> None:
    first = await local.start()
    (local.home(first) / "thesis").write_text("chapter one")
    await local.end(first)
    [snapshot] = await local.stores.disk_operations.snapshots((await local.disk()).disk_id)
    contents = await find_contents(local.stores, snapshot.snapshot_id)
    assert contents is not None
    assert ("thesis", 11) in {(entry.path, entry.size) for entry in contents.entries}
    second = await local.start()
    assert local.home(second) == local.home(first)
    assert (local.home(second) / "thesis").read_text() == "chapter one"
    assert len(await local.stores.disk_operations.snapshots((await local.disk()).disk_id)) == 1


async def test_what_is_in_a_snapshot_is_known_when_whoever_asked_for_it_hears_that_it_is_taken(
    local: LocalDisks,
) -> None:
    rid = await local.start()
    (local.home(rid) / "thesis").write_text("chapter one")
    disk = await local.disk()
    operation = await local.work.operations.request_operation(await local.user(), SnapshotDisk(disk.disk_id), key="now")
    asked = operation.operation_id
    while not (await local.operation(asked)).state.is_finished:
        await local.work.advance(asked, within_s=60)
        local.clock.move(seconds=3)
    [snapshot] = await local.stores.disk_operations.snapshots(disk.disk_id)
    contents = await find_contents(local.stores, snapshot.snapshot_id)
    assert contents is not None
    assert "thesis" in {entry.path for entry in contents.entries}


async def test_a_folder_that_was_lost_comes_back_from_the_snapshot_and_the_owner_is_told(local: LocalDisks) -> None:
    first = await local.start()
    (local.home(first) / "thesis").write_text("chapter one")
    await local.end(first)
    await local.cloud.remove_volume((await local.disk()).volume_id or "")
    second = await local.start()
    assert local.home(second) != local.home(first)
    assert (local.home(second) / "thesis").read_text() == "chapter one"
    told = [event.message for event in await local.stores.reservations.events(second) if event.kind == "step"]
    assert any("is ready, from a snapshot" in message for message in told), told


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files called `theirs` are somebody else's, and nobody may read them. (Who runs the tests may be root.)"""
    opened = tree_copy.TreeCopy._open_file

    def refuse(self: tree_copy.TreeCopy, name: str) -> tuple[int, int | None]:
        if name == "theirs":
            raise tree_copy._Skipped(PermissionError(errno.EACCES, "closed"))
        return opened(self, name)

    monkeypatch.setattr(tree_copy.TreeCopy, "_open_file", refuse)


@pytest.mark.usefixtures("closed")
async def test_what_a_snapshot_could_not_read_is_told_and_its_volume_is_never_given_up_for_it(
    local: LocalDisks,
) -> None:
    first = await local.start()
    await local.end(first)
    disk = await local.disk()
    second = await local.start()
    home = local.home(second)
    (home / "theirs").write_text("nowhere else")
    (home / "mine").write_text("kept")
    await local.end(second)
    older, lacking = sorted(await local.stores.disk_operations.snapshots(disk.disk_id), key=lambda one: one.created_at)
    assert lacking.lacks == "1 entry of other owners that cannot be read: theirs"
    history = [event.message for event in await local.stores.disk_views.list_disk_events(disk.disk_id)]
    assert any(f"lacks {lacking.lacks}; volume {home.name} has them and is kept" in line for line in history), history
    told = (await local.stores.reservations.events(second))[-1].message
    assert f"which lacks {lacking.lacks}" in told
    await local.ask(RestoreDisk(disk.disk_id, older.snapshot_id))
    assert (await local.disk()).volume_id != home.name
    for _ in range(3):
        local.clock.move(days=20)
        await local.work.run_round()
        await local.work.wait_idle()
    assert (home / "theirs").read_text() == "nowhere else", "it is in no snapshot, so its volume stays"
    [restored] = [one for one in await local.stores.disk_operations.operations(disk.disk_id) if one.kind == "restore"]
    assert f"the old volume {home.name} is still there" in str(restored.result)


@pytest.mark.usefixtures("closed")
async def test_a_folder_that_was_lost_is_not_silently_replaced_by_a_snapshot_that_lacks_something(
    local: LocalDisks,
) -> None:
    first = await local.start()
    (local.home(first) / "theirs").write_text("nowhere else")
    await local.end(first)
    await local.cloud.remove_volume((await local.disk()).volume_id or "")
    second = await local.submit(8, disk="data")
    await local.go_on()
    assert "no snapshot holds what was last on it" in str((await local.get(second)).failure_reason)


async def test_a_disk_from_before_there_were_volumes_comes_back_with_its_files(local: LocalDisks) -> None:
    home = await local.old_disk()
    inode = home.stat().st_ino
    assert await local.adopt() == 1
    assert await local.adopt() == 0, "once is enough"
    disk = await local.disk()
    assert (disk.volume_id, disk.zone, disk.size_gb) == (home.name, "this-machine", 100)
    rid = await local.start()
    assert local.home(rid) == home
    assert (home / "thesis").read_text() == "from before"
    assert home.stat().st_ino == inode, "nothing was moved or copied"
    await local.end(rid)
    assert len(await local.stores.disk_operations.snapshots(disk.disk_id)) == 1


async def test_a_disk_that_nobody_used_has_nothing_to_adopt(local: LocalDisks) -> None:
    rid = await local.submit(8, disk="data")
    await local.cancel(rid)
    await local.turn()
    assert await local.adopt() == 0
    assert (await local.disk()).volume_id is None


async def test_one_that_ran_before_disks_were_made_ready_keeps_its_folder(local: LocalDisks) -> None:
    """The processor was replaced by a newer one while its dev server ran."""
    older = make_processor(local.stores, local.cluster, local.clock, local.settings.timing)
    newer, local.processor = local.processor, older
    rid = await local.submit(8, disk="data")
    await local.turn()
    assert await local.status(rid) is Status.ACTIVE
    home = local.settings.state_dir / "disks" / str((await local.disk()).disk_id)
    home.mkdir(parents=True)
    (home / "thesis").write_text("from before")
    assert older._lease is not None
    await local.stores.leases.release(older._lease)
    local.processor = newer
    assert await local.adopt() == 1
    local.cluster.kill(rid, unwatched=True)
    await local.go_on()
    assert local.home(rid) == home
    await local.end(rid)
    [snapshot] = await local.stores.disk_operations.snapshots((await local.disk()).disk_id)
    contents = await find_contents(local.stores, snapshot.snapshot_id)
    assert contents is not None
    assert "thesis" in {entry.path for entry in contents.entries}


async def test_an_adopted_disk_can_be_cloned_and_in_the_end_purged(local: LocalDisks) -> None:
    home = await local.old_disk()
    await local.adopt()
    disk = await local.disk()
    await local.ask(CloneDisk(new_disk_id(), disk.disk_id, "copy"))
    copy = await local.disk("copy")
    assert copy.volume_id is not None
    assert (home.parent / copy.volume_id / "thesis").read_text() == "from before"
    await local.ask(DeleteDisk(disk.disk_id))
    assert (home / "thesis").exists(), "it can be had back"
    local.clock.move(days=31)
    await local.ask(PurgeDisk(disk.disk_id))
    assert not home.exists(), "we made it, so we remove it"


async def test_contents_go_with_their_snapshot(local: LocalDisks) -> None:
    rid = await local.start()
    await local.end(rid)
    disk = await local.disk()
    [snapshot] = await local.stores.disk_operations.snapshots(disk.disk_id)
    assert await find_contents(local.stores, snapshot.snapshot_id) is not None
    await local.ask(DeleteDisk(disk.disk_id))
    local.clock.move(days=31)
    for _ in range(3):
        local.clock.move(minutes=11)
        await local.work.run_round()
        await local.work.wait_idle()
    assert await find_contents(local.stores, snapshot.snapshot_id) is None


async def test_one_machine_opens_its_folders_and_adopts_what_lies_there(
    stores: Stores, settings: Settings, local: LocalDisks
) -> None:
    home = await local.old_disk()
    one_machine = replace(settings, cloud="local", disks=DISKS)
    async with open_disk_reconciler(one_machine, stores) as work:
        assert work is not None
    assert (await local.disk()).volume_id == home.name
    async with open_disk_reconciler(replace(settings, cluster="kubernetes", cloud="local"), stores) as nothing:
        assert nothing is None, "pods cannot use this machine's folders"
    async with open_disk_reconciler(replace(settings, cloud="none"), stores) as nothing:
        assert nothing is None
