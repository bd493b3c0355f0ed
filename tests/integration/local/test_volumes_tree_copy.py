"""A snapshot and a disk made of it hold what the disk held, and are nobody's but their own."""

import asyncio
import mmap
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpudev.adapters.local.volumes import snapshot_store
from gpudev.adapters.local.volumes.filesystem import filesystem_type
from gpudev.adapters.local.volumes.thread_jobs import open_directory
from gpudev.adapters.local.volumes.tree_copy import CopyMethod
from gpudev.adapters.local.volumes.volume_store import SKELETON
from support.clock import ManualClock
from support.local.local_world import IS_ROOT
from support.local.volume_world import VolumeWorld, seen


@pytest.fixture
async def world(tmp_path: Path, clock: ManualClock) -> AsyncIterator[VolumeWorld]:
    world = VolumeWorld(tmp_path / "state", clock)
    await world.cloud.start()
    yield world
    await world.cloud.close()


@pytest.fixture
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not be two seconds old to be taken over from an earlier snapshot."""
    monkeypatch.setattr(snapshot_store, "_COARSE_NS", 0)


@pytest.fixture
def tells_changes(tmp_path: Path) -> None:
    with open_directory(tmp_path) as top:
        kind = filesystem_type(top)
    if kind not in ("ext2", "ext3", "ext4", "xfs"):
        pytest.skip(f"{kind} makes no snapshots by hard links")


async def test_a_new_disk_begins_as_the_systems_skeleton(world: VolumeWorld) -> None:
    home = world.home(await world.new_volume())
    there = {path.name for path in SKELETON.iterdir()} if SKELETON.is_dir() else set()
    assert {path.name for path in home.iterdir()} == there
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


async def test_everything_of_a_home_is_kept(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    home = world.home(volume)
    fill(home)
    before = seen(home)
    snapshot = await world.snapshot(volume)
    assert seen(world.tree(snapshot)) == before
    assert seen(home) == before
    clone = await world.restored(snapshot)
    assert seen(world.home(clone)) == before
    record = await world.record(snapshot)
    assert (record.left_out, record.notes) == (0, ())


async def test_holes_stay_holes(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    with (world.home(volume) / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 34)
        sparse.seek(1 << 33)
        sparse.write(b"in the middle")
    tree = world.tree(await world.snapshot(volume))
    with (tree / "sparse").open("rb") as copy:
        copy.seek(1 << 33)
        assert copy.read(13) == b"in the middle"
    found = (tree / "sparse").stat()
    assert found.st_size == 1 << 34
    assert found.st_blocks * 512 < 1 << 20


async def test_pipes_and_sockets_are_left_out_and_told(world: VolumeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = await world.new_volume()
    home = world.home(volume)
    os.mkfifo(home / "pipe")
    monkeypatch.chdir(home)  # a socket's name must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        snapshot = await world.snapshot(volume)
    record = await world.record(snapshot)
    assert record.left_out == 2
    assert sorted(note.split(":")[0] for note in record.notes) == ["pipe", "socket"]
    assert not (world.tree(snapshot) / "pipe").exists()


@pytest.mark.skipif(not IS_ROOT, reason="only root can make a device")
async def test_devices_are_refused_and_told(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    os.mknod(world.home(volume) / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(world.home(volume) / "layer", stat.S_IFCHR | 0o600, 0)
    (world.home(volume) / "file").write_text("kept")
    snapshot = await world.snapshot(volume)
    record = await world.record(snapshot)
    assert record.notes == ("null: a device: not copied",)
    assert (world.tree(snapshot) / "layer").is_char_device()
    assert (world.tree(snapshot) / "file").read_text() == "kept"


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files to others")
async def test_files_keep_their_owners_and_special_rights(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    home = world.home(volume)
    for number, name in enumerate(("one", "two", "folder/three")):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(name)
        os.chown(home / name, 40_000 + number, 50_000 + number)
        (home / name).chmod(0o6751)
    os.chown(home / "folder", 40_009, 50_009)
    (home / "link").symlink_to("nowhere")
    os.chown(home / "link", 40_010, 50_010, follow_symlinks=False)
    os.chown(home, 40_011, 50_011)
    before = seen(home)
    assert seen(world.tree(await world.snapshot(volume))) == before


async def test_a_disk_deeper_than_any_path_is_kept_and_removed(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    depth = 3000
    here = os.open(world.home(volume), os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("folder", dir_fd=here)
        inner = os.open("folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    bottom = os.open("bottom", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here)
    os.write(bottom, b"deep")
    os.close(bottom)
    os.close(here)
    snapshot = await world.snapshot(volume)
    record = await world.record(snapshot)
    skeleton = sum(path.is_dir() for path in SKELETON.rglob("*"))
    assert record.folders == depth + skeleton
    told = await world.cloud.snapshot_contents(snapshot.snapshot_id)
    assert told.folders == depth + skeleton
    assert max(len(entry.path) for entry in told.entries) <= 1000, "the names of a deep tree have no end"
    assert not told.is_complete
    assert read_deep(world.tree(snapshot), depth) == "deep"
    await world.cloud.remove_volume(volume.volume_id)
    await world.cloud.remove_snapshot(snapshot.snapshot_id)
    await world.cleaned_up()


async def test_snapshot_disk_and_clone_are_independent(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    (world.home(volume) / "file").write_text("first")
    snapshot = await world.snapshot(volume)
    clone = await world.restored(snapshot)
    overwrite(world.home(volume) / "file", b"disk!")
    overwrite(world.home(clone) / "file", b"clone")
    assert (world.tree(snapshot) / "file").read_text() == "first"
    assert (world.home(volume) / "file").read_text() == "disk!"
    assert (world.home(clone) / "file").read_text() == "clone"


@pytest.mark.usefixtures("settled_at_once", "tells_changes")
async def test_the_next_snapshot_shares_what_has_not_changed_with_the_one_before(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    home = world.home(volume)
    fill(home)
    first = await world.snapshot(volume)
    (home / "folder" / "file").rename(home / "moved")
    (home / "added").write_text("new")
    before = seen(home)
    second = await world.snapshot(volume)
    assert seen(world.tree(second)) == before
    assert (await world.record(first)).method == CopyMethod.COPY
    assert (await world.record(second)).method == CopyMethod.HARD_LINKS
    shared = [world.tree(snapshot) / "big" for snapshot in (first, second)]
    assert shared[0].samefile(shared[1])
    assert not shared[0].samefile(home / "big"), "the disk's own file would change with the snapshot"
    await world.cloud.remove_snapshot(first.snapshot_id)
    await world.cleaned_up()
    assert seen(world.tree(second)) == before


@pytest.mark.usefixtures("settled_at_once", "tells_changes")
async def test_a_change_that_is_hidden_behind_old_times_is_seen(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    file = world.home(volume) / "file"
    file.write_text("before")
    times = file.stat()
    first = await world.snapshot(volume)
    overwrite(file, b"after!")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = await world.snapshot(volume)
    assert [(world.tree(snapshot) / "file").read_text() for snapshot in (first, second)] == ["before", "after!"]


@pytest.mark.usefixtures("settled_at_once", "tells_changes")
async def test_files_of_other_centuries_are_kept_and_shared(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    years = {"1901": -2_170_000_000, "2400": 13_600_000_000}
    for name, seconds in years.items():
        (world.home(volume) / name).write_text(name)
        os.utime(world.home(volume) / name, (seconds, seconds))
    before = seen(world.home(volume))
    first, second = await world.snapshot(volume), await world.snapshot(volume)
    for snapshot in (first, second):
        assert seen(world.tree(snapshot)) == before
    for name in years:
        assert (world.tree(first) / name).samefile(world.tree(second) / name)
    assert seen(world.home(await world.restored(second))) == before


@pytest.mark.usefixtures("settled_at_once", "tells_changes")
async def test_changes_through_mapped_memory_are_seen(world: VolumeWorld) -> None:
    """As long as its pages are not written out, they change without any sign in the file's times."""
    volume = await world.new_volume()
    file = world.home(volume) / "mapped"
    file.write_bytes(b"\0" * 4096)
    with file.open("r+b") as open_file, mmap.mmap(open_file.fileno(), 4096) as memory:
        for number in range(1, 6):
            memory[:] = bytes([number]) * 4096
            first = await world.snapshot(volume)
            memory[:] = bytes([100 + number]) * 4096
            second = await world.snapshot(volume)
            assert (world.tree(first) / "mapped").read_bytes() == bytes([number]) * 4096
            assert (world.tree(second) / "mapped").read_bytes() == bytes([100 + number]) * 4096


async def test_a_file_touched_just_before_is_copied_again(world: VolumeWorld) -> None:
    """Clocks of file systems are coarse: what changed a moment ago may change again at the same time of theirs."""
    volume = await world.new_volume()
    (world.home(volume) / "file").write_text("just now")
    await world.snapshot(volume)
    second = await world.snapshot(volume)
    assert (world.tree(second) / "file").stat().st_nlink == 1


@pytest.fixture
def reflinks(tmp_path: Path) -> Iterator[Path]:
    """A small btrfs of its own."""
    program = shutil.which("mkfs.btrfs", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    if not IS_ROOT or program is None:
        pytest.skip("needs root and mkfs.btrfs: no file system with reflinks can be made here")
    image, place = tmp_path / "image", tmp_path / "btrfs"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run([program, "-q", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a btrfs cannot be mounted here: {mounted.stderr}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
async def test_snapshots_and_clones_share_blocks_where_the_file_system_can(reflinks: Path, clock: ManualClock) -> None:
    world = VolumeWorld(reflinks / "state", clock)
    await world.cloud.start()
    volume = await world.new_volume()
    home = world.home(volume)
    fill(home)
    (home / "large").write_bytes(os.urandom(100 << 20))
    before = seen(home)
    snapshot = await world.snapshot(volume)
    clone = await world.restored(snapshot)
    second = await world.snapshot(volume)
    assert [(await world.record(one)).method for one in (snapshot, second)] == [CopyMethod.REFLINK] * 2
    assert seen(world.tree(snapshot)) == seen(world.home(clone)) == seen(world.tree(second)) == before
    # Four times 100 MB in 256 MB.
    overwrite(home / "large", b"changed")
    assert seen(world.tree(snapshot)) == before
    await world.cloud.close()


def fill(home: Path) -> None:
    """A bit of everything that anybody may make."""
    (home / "folder" / "inner").mkdir(parents=True)
    (home / "empty").touch()
    (home / "big").write_bytes(os.urandom(3_000_001))
    (home / "folder" / "file").write_bytes(os.urandom(5000))
    (home / "folder" / "file").chmod(0o4751)
    (home / "folder" / "same").hardlink_to(home / "folder" / "file")
    (home / "same, far away").hardlink_to(home / "folder" / "file")
    (home / "link").symlink_to("folder/file")
    (home / "outside").symlink_to("/etc/passwd")
    (home / "nowhere").symlink_to("does/not/exist")
    Path(os.fsdecode(os.fsencode(home) + b"/\xff\xfe name\n")).write_text("no UTF-8")
    os.utime(home / "link", ns=(1, 2), follow_symlinks=False)
    try:
        os.setxattr(home / "folder", "user.note", b"kept")
        os.setxattr(home / "big", "user.note", b"kept too")
    except OSError:
        pass  # not on this file system
    (home / "folder" / "inner").chmod(0o1777)
    for number, path in enumerate(sorted(home.rglob("*"), reverse=True)):
        if not path.is_symlink():
            os.utime(path, ns=(10**18 + number, 10**18 + 7 * number))
    os.utime(home, ns=(10**18, 10**18 + 1))


def overwrite(path: Path, data: bytes) -> None:
    """In place: the file stays the same one."""
    with path.open("r+b") as file:
        file.write(data)


def read_deep(top: Path, depth: int) -> str:
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        inner = os.open("folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    try:
        with open("bottom", opener=lambda name, flags: os.open(name, flags, dir_fd=here)) as file:
            return file.read()
    finally:
        os.close(here)


def make_deep(top: Path, depth: int, name: str) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


async def test_a_tree_without_end_is_copied_down_to_a_depth_and_the_rest_is_noted(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    await asyncio.to_thread(make_deep, world.home(volume), 12_000, "d" * 240)
    began = time.process_time()
    snapshot = await world.snapshot(volume)
    assert time.process_time() - began < 10, "each level must not cost as much as all above it"
    record = await world.record(snapshot)
    assert [note.rpartition(": ")[2] for note in record.notes] == ["not copied"]
    assert "nested too deeply" in record.notes[0]
    assert len(record.notes[0]) < 1000
    assert record.folders < 5000
    await world.cloud.remove_volume(volume.volume_id)
    await world.cloud.remove_snapshot(snapshot.snapshot_id)
    await world.cleaned_up()
