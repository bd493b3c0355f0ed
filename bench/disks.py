"""`disks`: the cost of disks for reservations (`disk_reservations`), and snapshots of a local disk compared with `cp
-a`.

The disk has 10,000 files and 1 GB. Rounds alternate, and every other round is in reverse order, so that other load on
the machine affects both equally. `cp -a` returns before its data is on the device; a completed snapshot is on the
device. So both are measured: `cp -a` with `sync -f`, which gives the same guarantee, and without.
"""

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from bench import disk_reservations
from bench.figures import report
from gpudev.adapters.local.cloud import LocalCloud
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import SnapshotState

_FOLDERS, _FILES_EACH, _FILE_SIZE = 100, 100, 107_374
_ROUNDS = 6


def run() -> None:
    disk_reservations.run()
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-") as folder:
        asyncio.run(_local(Path(folder)))


async def _local(folder: Path) -> None:
    cloud = LocalCloud(folder / "state", SystemClock())
    await cloud.start()
    volume = await cloud.ensure_volume(str(uuid4()), size_gb=10, zone="here", tags={})
    home = folder / "state" / "disks" / volume.volume_id
    await asyncio.to_thread(_fill, home)
    # The next snapshot copies files again that changed within the last two seconds.
    await asyncio.sleep(2.5)
    times: list[tuple[float, float]] = []
    firsts, nexts = [], []
    methods: set[tuple[str | None, str | None]] = set()
    for round_number in range(_ROUNDS):
        if round_number % 2 == 0:
            times.append(await asyncio.to_thread(_cp, home, folder / "copy"))
        first, first_method, first_id = await _snapshot(cloud, volume.volume_id)
        second, next_method, next_id = await _snapshot(cloud, volume.volume_id)
        firsts.append(first)
        nexts.append(second)
        methods.add((first_method, next_method))
        for snapshot_id in (first_id, next_id):
            await cloud.remove_snapshot(snapshot_id)
        await asyncio.to_thread(_until_empty, folder / "state" / "disks" / ".trash")
        if round_number % 2 == 1:
            times.append(await asyncio.to_thread(_cp, home, folder / "copy"))
    await cloud.close()
    copies, durable = [plain for plain, _ in times], [synced for _, synced in times]
    [(first_method, next_method)] = methods
    size = "10,000 files, 1 GB"
    report("disks", f"cp -a of {size}", statistics.median(copies), "s", None)
    report("disks", f"cp -a and sync of {size}", statistics.median(durable), "s", None)
    report("disks", f"first snapshot of {size}, by {first_method}", statistics.median(firsts), "s", None)
    report("disks", f"next snapshot of {size}, by {next_method}", statistics.median(nexts), "s", None)
    report("disks", f"first snapshot ({first_method}) / cp -a and sync", _ratio(firsts, durable), "x", 1.0)
    report("disks", f"first snapshot ({first_method}) / cp -a", _ratio(firsts, copies), "x", 1.0)
    report("disks", f"next snapshot ({next_method}) / cp -a", _ratio(nexts, copies), "x", 1.0)


def _fill(home: Path) -> None:
    content = os.urandom(_FILE_SIZE)
    for folder in range(_FOLDERS):
        path = home / f"folder{folder:03}"
        path.mkdir()
        for file in range(_FILES_EACH):
            (path / f"file{file:03}").write_bytes(content)
    os.sync()


def _cp(source: Path, target: Path) -> tuple[float, float]:
    started = time.perf_counter()
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    copied = time.perf_counter()
    subprocess.run(["sync", "-f", str(target)], check=True)
    synced = time.perf_counter()
    remove_folder(target)
    os.sync()
    return copied - started, synced - started


async def _snapshot(cloud: LocalCloud, volume_id: str) -> tuple[float, str | None, str]:
    started = time.perf_counter()
    snapshot = await cloud.ensure_snapshot(str(uuid4()), volume_id, {})
    while (record := await cloud.find_snapshot_record(snapshot.snapshot_id)) is not None:
        if record.state is SnapshotState.COMPLETED:
            assert record.files >= _FOLDERS * _FILES_EACH
            return time.perf_counter() - started, record.method, snapshot.snapshot_id
        assert record.state is SnapshotState.PENDING, record.error
        await asyncio.sleep(0.005)
    raise AssertionError("the snapshot is gone")


def _until_empty(trash: Path) -> None:
    while any(trash.iterdir()):
        time.sleep(0.05)
    os.sync()


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios per round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
