"""Local disks as their owners and the control plane meet them."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from contracts.cloud_worlds import ours
from gpudev.adapters.local.servers.state_folder import StateFolder
from gpudev.adapters.local.volumes import filesystem, snapshot_store, tree_copy
from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.tree_copy import ContentsCounter, CopyProgress
from gpudev.adapters.local.volumes.volume_layout import VolumeOrSnapshot
from gpudev.domain.disks.contents import Contents, DiskEntryKind
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import DiskId, new_disk_id
from gpudev.ports.cloud import SnapshotState
from support.clock import ManualClock
from support.local.volume_world import VolumeWorld, seen
from support.polling import eventually_async


@pytest.fixture
async def world(tmp_path: Path, clock: ManualClock) -> AsyncIterator[VolumeWorld]:
    world = VolumeWorld(tmp_path / "state", clock)
    await world.cloud.start()
    yield world
    await world.cloud.close()


def old_disk(world: VolumeWorld) -> tuple[str, Path]:
    """One that a dev server has made before there were records."""
    disk_id: DiskId = new_disk_id()
    home = StateFolder(world.state_dir).ensure_disk(disk_id, os.getuid())
    (home / "file").write_text("from before")
    return str(disk_id), home


async def test_a_disk_from_before_there_were_records_is_found_adopted_and_snapshotted(world: VolumeWorld) -> None:
    disk_id, home = old_disk(world)
    found = await world.cloud.find_volume(disk_id)
    assert found is not None
    assert (found.size_gb, found.tags) == (0, {})
    assert await world.cloud.volumes() == []
    await world.cloud.tag_volume(disk_id, ours())
    await world.cloud.grow_volume(disk_id, 30)
    [volume] = await world.cloud.volumes()
    assert (volume.volume_id, volume.size_gb, volume.owner) == (disk_id, 30, "ada")
    assert world.home(volume) == home
    snapshot = await world.snapshot(volume)
    assert seen(world.tree(snapshot)) == seen(home)


async def test_a_disk_made_here_is_the_home_that_a_dev_server_gets(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    (world.home(volume) / "file").write_text("there")
    home = StateFolder(world.state_dir).ensure_disk(DiskId(UUID(volume.volume_id)), os.getuid())
    assert (home / "file").read_text() == "there"


async def test_our_own_folders_are_closed_to_users(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    await world.snapshot(volume)
    for path in world.folders.disks.iterdir():
        if path.name.startswith("."):
            assert path.stat().st_mode & 0o077 == 0, path


async def test_ids_that_are_no_ids_lead_nowhere(world: VolumeWorld) -> None:
    (world.state_dir / "disks" / "mine").mkdir()
    for text in ("../servers", "mine", ".volumes", "vol-0123", "", str(uuid4()).upper()):
        assert await world.cloud.find_volume(text) is None
        assert await world.cloud.find_snapshot(text) is None
        await world.cloud.remove_volume(text)
        await world.cloud.remove_snapshot(text)
        with pytest.raises(ClusterError):
            await world.cloud.tag_volume(text, {})
        with pytest.raises(ClusterError):
            await world.cloud.ensure_snapshot(str(uuid4()), text, {})
    with pytest.raises(ClusterError):
        await world.cloud.ensure_volume("../x", size_gb=1, zone="here", tags={})
    assert (world.state_dir / "disks" / "mine").is_dir()
    assert not list(world.folders.locks.iterdir())


async def test_a_record_that_cannot_be_read_is_not_an_empty_listing(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    (world.folders.records / f"{volume.volume_id}.json").write_text("{")
    with pytest.raises(Unavailable):
        await world.cloud.volumes()
    with pytest.raises(Unavailable):
        await world.cloud.find_volume(volume.volume_id)


async def test_who_has_a_disk_is_unknown_while_a_dev_servers_record_cannot_be_read(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    await world.attach(volume.volume_id)
    [record] = world.state_dir.glob("servers/*/record.json")
    record.write_text("{")
    with pytest.raises(Unavailable):
        await world.cloud.find_volume(volume.volume_id)
    with pytest.raises(Unavailable):
        await world.cloud.remove_volume(volume.volume_id)
    assert world.home(volume).is_dir()


async def test_an_empty_folder_in_place_of_all_disks_says_nothing_about_them(world: VolumeWorld) -> None:
    """Its file system is not mounted: whoever looked there would find every disk and snapshot gone, and believe it."""
    volume = await world.new_volume()
    snapshot = await world.snapshot(volume)
    await world.cloud.close()
    elsewhere = world.folders.disks.rename(world.state_dir / "not-mounted")
    world.folders.disks.mkdir()
    with pytest.raises(Unavailable, match=r"mounted.*disks\.made"):
        await world.cloud.start()
    assert list(world.folders.disks.iterdir()) == [], "nothing is written where it would be hidden later"
    await world.cloud.close()
    world.folders.disks.rmdir()
    with pytest.raises(Unavailable, match="mounted"):
        await world.cloud.start()
    elsewhere.rename(world.folders.disks)
    await world.cloud.start()
    assert await world.cloud.find_volume(volume.volume_id) == volume
    assert await world.cloud.find_snapshot(snapshot.snapshot_id) == snapshot


async def test_what_is_removed_is_gone_for_good_after_a_while(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    snapshot = await world.snapshot(volume)
    await world.cloud.remove_volume(volume.volume_id)
    await world.cloud.remove_snapshot(snapshot.snapshot_id)
    assert not world.home(volume).exists()
    await world.cleaned_up()
    await world.cloud.close()
    left = [path for path in world.folders.disks.rglob("*") if path.parent != world.folders.disks]
    assert left == []
    await world.cloud.start()


class Gate:
    """Stops copies before their first byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = False
        self.tried = 0
        self._copy_bytes = filesystem.copy_bytes
        monkeypatch.setattr(tree_copy, "copy_bytes", self._copy)

    def _copy(self, *arguments: int) -> int:
        self.tried += 1
        if not self.is_open:
            time.sleep(0.005)  # byte by byte, without using up a core
            arguments = (*arguments[:3], min(arguments[3], arguments[2] + 1))
        return self._copy_bytes(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


async def big_disk(world: VolumeWorld, gate: Gate) -> str:
    """That takes long to copy, as long as the gate is closed."""
    gate.is_open = True
    volume = await world.new_volume()
    (world.home(volume) / "big").write_bytes(os.urandom(200_000))
    gate.is_open = False
    return volume.volume_id


async def until_trying(gate: Gate) -> None:
    before = gate.tried
    await eventually_async(lambda: gate.tried >= before + 3, every=0.001)


def find_progress(world: VolumeWorld, token: str) -> CopyProgress | None:
    """Of the volume or snapshot that is being made for this token."""
    jobs = (world.cloud._jobs.get((thing, token)) for thing in VolumeOrSnapshot)
    return next((job.progress for job, _ in filter(None, jobs)), None)


async def test_a_snapshot_that_was_broken_off_is_completed_by_whoever_looks_next(
    world: VolumeWorld, gate: Gate
) -> None:
    volume_id = await big_disk(world, gate)
    begun = await world.cloud.ensure_snapshot(str(uuid4()), volume_id, ours())
    await until_trying(gate)
    progress = find_progress(world, begun.snapshot_id)
    assert progress is not None
    assert progress.size_bytes > 0
    await world.restart()
    record = await world.cloud.find_snapshot_record(begun.snapshot_id)
    assert record is not None
    assert record.state is SnapshotState.PENDING
    gate.is_open = True
    await world.complete(begun.snapshot_id)
    found = await world.cloud.find_snapshot(begun.snapshot_id)
    assert found is not None
    assert seen(world.tree(found)) == seen(world.folders.volume_path(volume_id))


async def test_a_disk_stays_until_the_snapshot_that_was_begun_of_it_is_complete(world: VolumeWorld, gate: Gate) -> None:
    volume_id = await big_disk(world, gate)
    begun = await world.cloud.ensure_snapshot(str(uuid4()), volume_id, ours())
    with pytest.raises(Unavailable):
        await world.cloud.remove_volume(volume_id)
    await world.restart()
    with pytest.raises(Unavailable):
        await world.cloud.remove_volume(volume_id)
    gate.is_open = True
    await world.complete(begun.snapshot_id)
    await world.cloud.remove_volume(volume_id)
    assert (await world.cloud.snapshots())[0].state is SnapshotState.COMPLETED


async def test_a_snapshot_is_removed_while_it_is_being_made(world: VolumeWorld, gate: Gate) -> None:
    volume_id = await big_disk(world, gate)
    begun = await world.cloud.ensure_snapshot(str(uuid4()), volume_id, ours())
    await until_trying(gate)
    await world.cloud.remove_snapshot(begun.snapshot_id)
    assert await world.cloud.find_snapshot(begun.snapshot_id) is None
    await world.cleaned_up()
    await world.cloud.remove_volume(volume_id)


async def test_a_clone_goes_on_when_nobody_waits_and_is_joined_by_whoever_asks_again(
    world: VolumeWorld, gate: Gate
) -> None:
    volume_id = await big_disk(world, gate)
    gate.is_open = True
    begun = await world.cloud.ensure_snapshot(str(uuid4()), volume_id, ours())
    await world.complete(begun.snapshot_id)
    gate.is_open = False
    token = str(uuid4())

    async def clone() -> str:
        made = await world.cloud.ensure_volume(
            token, size_gb=10, zone="here", tags=ours(), from_snapshot=begun.snapshot_id
        )
        return made.volume_id

    impatient = asyncio.create_task(clone())
    await until_trying(gate)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    assert find_progress(world, token) is not None
    assert await world.cloud.find_volume(token) is None, "it has no name before it is whole"
    gate.is_open = True
    assert seen(world.folders.volume_path(await clone())) == seen(world.folders.volume_path(volume_id))


async def test_nobody_else_waits_while_a_disk_is_copied(world: VolumeWorld, gate: Gate) -> None:
    volume_id = await big_disk(world, gate)
    await world.cloud.ensure_snapshot(str(uuid4()), volume_id, ours())
    await until_trying(gate)
    started = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(0)
        await world.cloud.find_volume(volume_id)
    assert time.monotonic() - started < 20


async def test_a_snapshot_that_cannot_be_made_says_why(world: VolumeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = await world.new_volume()
    (world.home(volume) / "file").write_text("content")

    def full(*_: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tree_copy, "copy_bytes", full)
    monkeypatch.setattr(tree_copy, "clone_file", lambda *_: False)
    snapshot = await world.snapshot(volume)
    assert snapshot.state is SnapshotState.ERROR
    assert snapshot.error == "No space left on device"
    record = await world.record(snapshot)
    assert record.error == "No space left on device"
    assert not world.tree(snapshot).exists()
    with pytest.raises(ClusterError):
        await world.cloud.ensure_volume(
            str(uuid4()), size_gb=10, zone="here", tags=ours(), from_snapshot=snapshot.snapshot_id
        )
    assert (world.home(volume) / "file").read_text() == "content"


async def test_a_disk_that_cannot_be_made_takes_no_room(world: VolumeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = await world.new_volume()
    for name in ("one", "two"):
        (world.home(volume) / name).write_text("content")
    snapshot = await world.snapshot(volume)
    copy_bytes, copied = tree_copy.copy_bytes, []

    def full(*arguments: int) -> int:
        if copied:
            raise OSError(28, "No space left on device")
        copied.append(1)
        return copy_bytes(*arguments)

    monkeypatch.setattr(tree_copy, "copy_bytes", full)
    monkeypatch.setattr(tree_copy, "clone_file", lambda *_: False)
    with pytest.raises(ClusterError, match="No space left"):
        await world.restored(snapshot)
    assert copied
    assert list(world.folders.drafts.iterdir()) == []


async def test_a_snapshot_whose_table_of_files_finds_no_room_says_so(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = await world.new_volume()
    for number in range(300):
        (world.home(volume) / f"{number:0200}").touch()
    monkeypatch.setattr(snapshot_store, "CopiedFileTable", NarrowTable)
    monkeypatch.setattr(snapshot_store, "_sync_and_get_cutoff", lambda _: 0)  # every file gets a line in it
    snapshot = await world.snapshot(volume)
    assert snapshot.state is SnapshotState.ERROR
    assert snapshot.error is not None
    assert snapshot.error.startswith("No space left on device")


async def test_a_snapshot_that_fails_as_nobody_foresaw_is_not_begun_again_and_again(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = await world.new_volume()
    (world.home(volume) / "file").write_text("content")
    tries = []

    def stumble(*_: int) -> int:
        tries.append(1)
        raise OverflowError("int too large")

    monkeypatch.setattr(tree_copy, "copy_bytes", stumble)
    monkeypatch.setattr(tree_copy, "clone_file", lambda *_: False)
    snapshot = await world.snapshot(volume)
    assert snapshot.state is SnapshotState.ERROR
    assert "OverflowError: int too large" in (snapshot.error or "")
    again = await world.cloud.find_snapshot(snapshot.snapshot_id)
    assert again is not None
    assert again.state is SnapshotState.ERROR
    assert len(tries) == 1


class NarrowTable(CopiedFileTable):
    """As on a device that is full."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        super().__init__(path, create=create)
        self._table.execute("PRAGMA max_page_count = 3")


async def test_two_processes_do_not_work_on_the_same_thing(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    with world.folders.lock(VolumeOrSnapshot.VOLUME, volume.volume_id):
        changing = asyncio.create_task(world.cloud.tag_volume(volume.volume_id, {"late": "yes"}))
        await asyncio.sleep(0.05)  # nothing happens, and nothing tells when it would have
        assert not changing.done()
    await changing
    found = await world.cloud.find_volume(volume.volume_id)
    assert found is not None
    assert found.tags["late"] == "yes"


async def test_contents_are_told_from_the_top_down_with_totals_of_everything(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = await world.new_volume()
    home = world.home(volume)
    for path in home.iterdir():
        path.unlink()
    (home / "a" / "deep").mkdir(parents=True)
    for number in range(50):
        (home / "a" / "deep" / f"{number:02}").write_bytes(b"x" * number)
    (home / "z").write_text("last, but near")
    (home / "link").symlink_to("/etc")
    os.utime(home / "z", (1_700_000_000, 1_700_000_000))
    snapshot = await world.snapshot(volume)
    monkeypatch.setattr("gpudev.adapters.local.volumes.snapshot_store.ContentsCounter", partial(ContentsCounter, 6))
    shortened = await world.snapshot(volume)
    told = await world.cloud.snapshot_contents(shortened.snapshot_id)
    assert [entry.path for entry in told.entries] == ["a", "link", "z", "a/deep", "a/deep/00", "a/deep/01"]
    assert [entry.kind for entry in told.entries[:3]] == [DiskEntryKind.FOLDER, DiskEntryKind.LINK, DiskEntryKind.FILE]
    assert (told.files, told.folders, told.size_bytes) == (52, 2, sum(range(50)) + 14)
    assert not told.is_complete
    kept = await world.cloud.snapshot_contents(snapshot.snapshot_id)
    assert kept.is_complete
    assert (kept.files, kept.folders, kept.size_bytes) == (told.files, told.folders, told.size_bytes)
    assert kept.entries[:6] == told.entries
    assert kept.entries[2].modified_at.timestamp() == 1_700_000_000
    assert Contents.from_json(json.loads(json.dumps(kept.to_json()))) == kept


async def test_nobody_may_write_while_a_snapshot_is_being_copied(world: VolumeWorld) -> None:
    """Also after a restart, when nobody has asked for it yet."""
    volume = await world.new_volume()
    snapshot_id = await world.give_snapshot(volume.volume_id, tags={}, state=SnapshotState.PENDING)
    await world.restart()
    found = await world.cloud.find_volume(volume.volume_id)
    assert found is not None
    assert found.busy_reason == "its snapshot is still being copied"
    await world.complete(snapshot_id)

    async def is_free() -> bool:
        again = await world.cloud.find_volume(volume.volume_id)
        assert again is not None
        return not again.busy_reason

    await eventually_async(is_free)


async def test_a_snapshot_that_is_given_up_keeps_nobody_waiting(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    snapshot_id = await world.give_snapshot(volume.volume_id, tags={}, state=SnapshotState.PENDING)
    await world.restart()
    await world.cloud.remove_snapshot(snapshot_id)
    found = await world.cloud.find_volume(volume.volume_id)
    assert found is not None
    assert found.busy_reason is None
