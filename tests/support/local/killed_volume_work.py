"""`python killing_volumes.py FOLDER WORK`: do a piece of work on disks again and again, each time in a process that
kills itself before its next file operation: the first, the second, … Then see that what is left is whole, that
doing it again succeeds, and that nothing else is left. Prints how often it was killed.
"""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gpudev.adapters.local.cloud import LocalCloud
from gpudev.adapters.local.servers.state_folder import StateFolder
from gpudev.adapters.local.volumes import filesystem, snapshot_store, volume_store
from gpudev.adapters.local.volumes.snapshot_store import LocalSnapshotStore
from gpudev.adapters.local.volumes.thread_jobs import ThreadJob
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.adapters.local.volumes.volume_layout import LocalSnapshotRecord, LocalVolumeRecord, VolumeLayout
from gpudev.adapters.local.volumes.volume_store import LocalVolumeStore
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import SnapshotState
from support.local.volume_world import seen
from support.polling import eventually_async

NOW = datetime(2026, 3, 2, tzinfo=UTC)
DISK, COPY, FIRST, SECOND = (f"00000000-0000-4000-8000-{number:012}" for number in range(4))
CHANGES = ("open", "os.", "fcntl.", "sqlite3.connect")
JUST_LOOKING = ("os.scandir", "os.listdir", "os.getxattr", "os.listxattr", "os.fork", "os.putenv")
WRITES = ("write", "pwrite", "copy_file_range", "fsync")


@dataclass
class Disks:
    folder: Path

    def __post_init__(self) -> None:
        self.folders = VolumeLayout(self.folder / "disks")
        self.volumes = LocalVolumeStore(StateFolder(self.folder), self.folders)
        self.snapshots = LocalSnapshotStore(self.folders)

    def ensure(self, volume_id: str, from_snapshot: str | None = None) -> None:
        record = LocalVolumeRecord(10, NOW, "here", volume_id, {"gpu-dev-user": "ada"}, from_snapshot)
        self.volumes.ensure_volume(volume_id, record, ThreadJob())

    def take(self, snapshot_id: str) -> None:
        self.snapshots.begin_snapshot(snapshot_id, LocalSnapshotRecord(DISK, 0, NOW, snapshot_id, {}))
        self.snapshots.complete_snapshot(snapshot_id, ThreadJob())

    def drop(self, rubbish: Path | None) -> None:
        if rubbish is not None:
            remove_folder(rubbish)

    def tag(self) -> None:
        self.volumes.update_volume(
            DISK, lambda record: LocalVolumeRecord(20, NOW, "here", DISK, {**record.tags, "more": "yes"})
        )

    def home(self, volume_id: str = DISK) -> dict[str, tuple[object, ...]] | None:
        path = self.folders.volume_path(volume_id)
        return seen(path) if path.exists() else None

    def kept(self, snapshot_id: str) -> dict[str, tuple[object, ...]] | None:
        record = self.snapshots.find_snapshot_record(snapshot_id)
        if record is None or record.state is not SnapshotState.COMPLETED:
            return None
        return seen(self.folders.snapshot_path(snapshot_id) / "tree")


WORKS: dict[str, Callable[[Disks], None]] = {
    "create": lambda disks: disks.ensure(COPY),
    "clone": lambda disks: disks.ensure(COPY, FIRST),
    "snapshot": lambda disks: disks.take(SECOND),
    "tag": Disks.tag,
    "remove-volume": lambda disks: disks.drop(disks.volumes.remove_volume(DISK)),
    "remove-snapshot": lambda disks: disks.drop(disks.snapshots.remove_snapshot(FIRST)),
}


def begin(folder: Path) -> Disks:
    """A disk with a bit of everything, and a snapshot of it."""
    disks = Disks(folder)
    disks.folders.prepare()
    disks.ensure(DISK)
    home = disks.folders.volume_path(DISK)
    for name in ("one", "two"):
        (home / name / "inner").mkdir(parents=True)
        (home / name / "inner" / "file").write_bytes(os.urandom(3000))
    (home / "same").hardlink_to(home / "one" / "inner" / "file")
    (home / "link").symlink_to("one/inner")
    with (home / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 20)
        sparse.seek(1 << 19)
        sparse.write(b"middle")
    (home / "two").chmod(0o500)
    disks.take(FIRST)
    (home / "one" / "inner" / "file").write_bytes(b"changed since")
    return disks


def main(folder: Path, work_name: str) -> None:
    stop_waiting_for_devices()
    work = WORKS[work_name]
    remembered = begin(folder / "model")
    expected = outcome(remembered, work)
    for killed in itertools.count(1):
        disks = begin(folder / str(killed))
        home, first = disks.home(), disks.kept(FIRST)
        if not was_killed(partial(work, disks), killed):
            assert killed > 10, "it was hardly killed at all"
            print(killed - 1)
            return
        check_whole(disks, work_name, home, first, expected)
        if killed % 2:  # somebody starts before the work is asked for again
            asyncio.run(start_and_close(disks))
            check_whole(disks, work_name, home, first, expected)
            check_nothing_left(disks)
        work(disks)
        asyncio.run(start_and_close(disks))
        check_done(disks, work_name, home, first)
        check_nothing_left(disks)
        remove_folder(disks.folder)


def outcome(disks: Disks, work: Callable[[Disks], None]) -> set[str]:
    work(disks)
    return names(disks)


def check_whole(disks: Disks, work: str, home: Any, first: Any, expected: set[str]) -> None:
    """At any moment: the user's bytes are there, and what has a name is whole."""
    if work != "remove-volume":
        assert disks.home() == home, "the disk itself changed"
    assert disks.home() in (home, None), "half of the disk is left"
    assert disks.kept(FIRST) in ((first,) if work != "remove-snapshot" else (first, None)), "half a snapshot is left"
    assert disks.kept(SECOND) in (None, home), "half a snapshot calls itself complete"
    assert work != "clone" or disks.home(COPY) in (None, first), "half a disk has a name"
    for volume in disks.volumes.list_volumes():
        assert volume.owner == "ada", "a disk without its record"
        assert (volume.size_gb, volume.tags.get("more")) in ((10, None), (20, "yes"))
    assert names(disks) <= expected | {DISK, FIRST, SECOND}


def check_done(disks: Disks, work: str, home: Any, first: Any) -> None:
    match work:
        case "create":
            assert disks.home(COPY) is not None
        case "clone":
            assert disks.home(COPY) == first
        case "snapshot":
            assert disks.kept(SECOND) == home
        case "tag":
            [volume] = disks.volumes.list_volumes()
            assert (volume.size_gb, volume.tags["more"]) == (20, "yes")
        case "remove-volume":
            assert disks.home() is None
        case "remove-snapshot":
            assert disks.kept(FIRST) is None
            assert disks.snapshots.list_snapshots() == []


def check_nothing_left(disks: Disks) -> None:
    folders = disks.folders
    living = {volume.volume_id for volume in disks.volumes.list_volumes()}
    taken = {snapshot.snapshot_id for snapshot in disks.snapshots.list_snapshots()}
    assert {path.name for path in folders.records.iterdir()} == {f"{volume_id}.json" for volume_id in living}
    assert not list(folders.drafts.iterdir())
    assert not list(folders.trash.iterdir())
    locked = {path.name.partition("-")[2] for path in folders.locks.iterdir()}
    assert locked <= living | taken, "a lock of nothing is left"
    for snapshot in disks.snapshots.list_snapshots():
        if snapshot.state is SnapshotState.COMPLETED:
            there = {path.name for path in folders.snapshot_path(snapshot.snapshot_id).iterdir()}
            assert there == {"record.json", "tree", "files"}
    hidden = {".volumes", ".snapshots", ".drafts", ".trash", ".locks", ".made"}
    assert {path.name for path in folders.disks.iterdir()} == living | hidden


def names(disks: Disks) -> set[str]:
    return {*disks.folders.volume_ids(), *disks.folders.snapshot_ids()}


async def start_and_close(disks: Disks) -> None:
    cloud = LocalCloud(disks.folder, SystemClock())
    await cloud.start()
    await eventually_async(lambda: not cloud._background_tasks, every=0.001)
    await cloud.close()


def stop_waiting_for_devices() -> None:
    """A killed process leaves all it wrote to the kernel: what is tried here does not need the device."""
    for module in (filesystem, snapshot_store, volume_store):
        vars(module)["sync_filesystem"] = lambda _: None
    vars(os)["fsync"] = lambda _: None
    vars(snapshot_store)["_COARSE_NS"] = 0


def was_killed(work: Callable[[], None], number: int) -> bool:
    """Whether there was a file operation of that number, before which it was killed."""
    child = os.fork()
    if child == 0:
        try:
            kill_before(number)
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001
            print(f"before it was killed: {error!r}", file=sys.stderr)
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def kill_before(number: int) -> None:
    operations = itertools.count(1)

    def operation() -> None:
        if next(operations) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, _: tuple[object, ...]) -> None:
        if event.startswith(CHANGES) and event not in JUST_LOOKING:
            operation()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any) -> Any:
            operation()
            return call(*arguments)

        return calling

    for name in WRITES:
        vars(os)[name] = counted(getattr(os, name))
    sys.addaudithook(audit)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
