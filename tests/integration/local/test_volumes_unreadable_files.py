"""Files and folders that are closed: by their owner, and they are kept; by somebody else, and it is told that they are
not, whatever became of the rest."""

import asyncio
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.thread_jobs import JobStopped, open_directory
from gpudev.adapters.local.volumes.tree_copy import CopyProgress, TreeCopy
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from support.clock import ManualClock
from support.local.local_world import IS_ROOT
from support.local.volume_world import VolumeWorld
from support.paths import SUPPORT

SCRIPTS = SUPPORT / "local"
NOBODY = 65534


@pytest.fixture
async def world(tmp_path: Path, clock: ManualClock) -> AsyncIterator[VolumeWorld]:
    world = VolumeWorld(tmp_path / "state", clock)
    await world.cloud.start()
    yield world
    await world.cloud.close()


@pytest.mark.skipif(IS_ROOT, reason="root reads everything")
async def test_what_its_owner_has_closed_is_kept_all_the_same_and_stays_closed(world: VolumeWorld) -> None:
    volume = await world.new_volume()
    home = world.home(volume)
    (home / "secret").write_text("closed")
    (home / "secret").chmod(0)
    (home / "fixed").mkdir()
    (home / "fixed" / "file").write_text("in a folder that may not be changed")
    (home / "fixed").chmod(0o500)
    home.chmod(0o500)
    snapshot = await world.snapshot(volume)
    assert stat.S_IMODE((home / "secret").stat().st_mode) == 0
    clone = world.home(await world.restored(snapshot))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (clone, clone / "secret", clone / "fixed")] == [
        0o500,
        0,
        0o500,
    ]
    (clone / "secret").chmod(0o400)
    assert (clone / "secret").read_text() == "closed"
    await world.cloud.remove_volume(volume.volume_id)
    await world.cloud.remove_snapshot(snapshot.snapshot_id)
    await world.cleaned_up()
    assert not home.exists()


@pytest.mark.skipif(IS_ROOT, reason="root enters everything")
@pytest.mark.parametrize("mode", [0, 0o100, 0o400, 0o200])
async def test_what_is_in_folders_that_their_owner_has_closed_is_kept_too(world: VolumeWorld, mode: int) -> None:
    volume = await world.new_volume()
    home = world.home(volume)
    closed = home / "closed"
    (closed / "inner").mkdir(parents=True)
    for path in (closed / "file", closed / "inner" / "file"):
        path.write_text("precious")
    (closed / "inner").chmod(mode)
    closed.chmod(mode)
    home.chmod(mode)
    before = await world.snapshot(volume)
    again = await world.snapshot(volume)
    assert (await world.record(again)).left_out == 0
    assert stat.S_IMODE(closed.stat().st_mode) == mode
    first, second = await asyncio.gather(world.restored(again), world.restored(again))
    for copy in (world.home(volume), world.home(first), world.home(second)):
        for path in (copy / "closed", copy / "closed" / "inner"):
            assert stat.S_IMODE(path.stat().st_mode) == mode
            path.chmod(0o700)
        assert (copy / "closed" / "file").read_text() == "precious"
        assert (copy / "closed" / "inner" / "file").read_text() == "precious"
    for one in (volume, first, second):
        await world.cloud.remove_volume(one.volume_id)
    for snapshot in (before, again):
        await world.cloud.remove_snapshot(snapshot.snapshot_id)
    await world.cleaned_up()
    assert not any(world.home(one).exists() for one in (volume, first, second))


@pytest.mark.skipif(IS_ROOT, reason="root enters everything")
def test_folders_are_closed_again_wherever_a_copy_is_broken_off(tmp_path: Path) -> None:
    folders = [tmp_path / "home", tmp_path / "home" / "a", tmp_path / "home" / "a" / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("content")
    broken_off = 0
    for steps in range(20):
        for folder in reversed(folders[1:]):
            folder.chmod(0)
        (tmp_path / f"copy-{steps}").mkdir()
        broken_off += not copied(folders[0], tmp_path / f"copy-{steps}", steps)
        for folder in folders[1:]:
            assert stat.S_IMODE(folder.stat().st_mode) == 0
            folder.chmod(0o700)
    assert 3 < broken_off < 20
    for copy in tmp_path.glob("copy-*"):
        remove_folder(copy)


def copied(source: Path, target: Path, steps: int) -> bool:
    """False: it was broken off after so many steps."""
    left = iter(range(steps))

    def check() -> None:
        if next(left, None) is None:
            raise JobStopped("enough")

    known = CopiedFileTable(target.with_suffix(".files"), create=True)
    try:
        with open_directory(source) as top, open_directory(target) as copy:
            TreeCopy(top, copy, known, CopyProgress(), check=check).run()
    except JobStopped:
        return False
    finally:
        known.close()
    return True


@pytest.fixture
def nobodys() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


def as_nobody(state_dir: Path, volume_id: str = "") -> dict[str, str]:
    """A volume that nobody made; or what its snapshot tells."""
    command = [sys.executable, str(SCRIPTS / "as_ordinary_user.py"), sys.executable, str(SCRIPTS / "take_snapshot.py")]
    done = subprocess.run([*command, str(state_dir), volume_id], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="only root gives files to others")
def test_what_belongs_to_others_and_cannot_be_read_is_named_as_what_the_snapshot_lacks(nobodys: Path) -> None:
    volume_id = as_nobody(nobodys)["volume_id"]
    assert as_nobody(nobodys, volume_id)["lacks"] is None
    home = nobodys / "disks" / volume_id
    (home / "theirs").write_text("of a container, say")
    (home / "theirs").chmod(0o600)
    (home / "readable").write_text("anybody may read it")
    (home / "folder").mkdir(mode=0o700)
    (home / "folder" / "inner").write_text("nobody knows of it")
    told = as_nobody(nobodys, volume_id)
    assert told["state"] == "completed"
    assert told["lacks"].startswith("2 entries of other owners that cannot be read: ")
    assert sorted(told["lacks"].partition(": ")[2].split(", ")) == ["folder", "theirs"]
    os.mkfifo(home / "pipe")
    (home / "theirs").unlink()
    (home / "folder" / "inner").unlink()
    (home / "folder").rmdir()
    assert as_nobody(nobodys, volume_id)["lacks"] is None, "a pipe holds nothing that could be lost"
