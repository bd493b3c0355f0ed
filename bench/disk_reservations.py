"""`disks`, part two: added start time with a disk, and the time until a disk is free after a reservation ends.

Processor and database are real; dev servers are simulated and start at once. Local: an empty home, and one with 10,000
files and 1 GB. Cloud: a stub of AWS in the same process.
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from bench.figures import percentile, report
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.adapters.local.cloud import LocalCloud
from gpudev.adapters.postgres.database.listener import Listener
from gpudev.adapters.postgres.database.migrator import ensure_queue_notifications, migrate
from gpudev.adapters.postgres.disks.operations import DISK_OPERATION_CHANGES_CHANNEL
from gpudev.adapters.postgres.queue.message_queue import QUEUE_INSERT_CHANNEL
from gpudev.adapters.postgres.stores import open_stores
from gpudev.bootstrap.processor import make_disk_reconciler, make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import CloudDisks
from gpudev.settings import AwsSettings, Settings, load_settings
from support.clouds.aws_stub import AwsStub
from support.paper_cluster import PaperCluster
from support.processor_world import World

_ROUNDS = 20
_WARM_UP = 3
_STUB_ZONE = "us-east-2a"


def run() -> None:
    asyncio.run(_run())


async def _run() -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-") as name:
        folder = Path(name)
        server = EmbeddedPostgres(folder / "data")
        server.initialise()
        server.start()
        try:
            settings = Settings(database=server.database_settings(), state_dir=folder / "state")
            await migrate(settings.database)
            await _local(settings)
            await _aws(settings, folder)
        finally:
            server.stop()


async def _local(settings: Settings) -> None:
    cloud = LocalCloud(settings.state_dir, SystemClock())
    await cloud.start()
    async with _running(replace(settings, disks=load_settings({}).disks), cloud) as world:
        without, starts, ends = await _stays_in_turn(world, "small")
        more = [1000 * (mine - other) for mine, other in zip(starts, without, strict=True)]
        report("disks", "local: start with a disk, more than without, median", statistics.median(more), "ms", 25)
        report("disks", "local: end of reservation to disk free, empty home, p95", percentile(ends, 0.95), "s", 0.5)
        await _large(world)
    await cloud.close()


async def _large(world: World) -> None:
    rid = await _start(world, "large")
    volume = world.cluster.specs[rid].volume
    assert volume is not None
    await asyncio.to_thread(_fill, world.settings.state_dir / "disks" / volume.volume_id)
    ends, again = [], []
    for _ in range(3):
        began = time.perf_counter()
        await _end(world, rid)
        ends.append(time.perf_counter() - began)
        rid = await _start(world, "large")
        again.append(time.perf_counter() - began)
    await _end(world, rid)
    size = "10,000 files, 1 GB"
    report("disks", f"local: end of reservation to disk free, {size}, median", percentile(ends, 0.5), "s", 2.0)
    report("disks", f"local: end to the next dev server on it, {size}, median", percentile(again, 0.5), "s", None)


async def _aws(settings: Settings, folder: Path) -> None:
    stub = AwsStub()
    await stub.start()
    files = {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}
    os.environ.update({**stub.environment(), **files})
    cloud = AwsCloud(AwsSettings())
    await cloud.start()
    disks = replace(settings.disks, zone=_STUB_ZONE, poll_every=timedelta(milliseconds=200))
    async with _running(replace(settings, disks=disks), cloud) as world:
        _, starts, ends = await _stays_in_turn(world, "small-aws")
        report("disks", "AWS stub: submit to dev server with its disk, p95", percentile(starts, 0.95), "s", None)
        report("disks", "AWS stub: end of reservation to disk free, p95", percentile(ends, 0.95), "s", 1.0)
    await cloud.close()
    await stub.close()


@contextlib.asynccontextmanager
async def _running(settings: Settings, cloud: CloudDisks) -> AsyncIterator[World]:
    clock, stores = SystemClock(), open_stores(settings)
    cluster = PaperCluster([Node("node-1", "h100", 8)], clock)
    work = make_disk_reconciler(stores, cloud, clock, settings.disks)
    processor = make_processor(stores, cluster, clock, settings.timing, disks=work)
    listeners = [
        Listener(settings.database, QUEUE_INSERT_CHANNEL, lambda _: processor.wake(), ensure_queue_notifications),
        Listener(settings.database, DISK_OPERATION_CHANGES_CHANNEL, work.on_notification),
    ]
    for listener in listeners:
        listener.start()
    running = asyncio.create_task(processor.run())
    try:
        yield World(stores, cluster, clock, processor, settings)  # type: ignore[arg-type]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for listener in listeners:
            await listener.close()
        await stores.close()


async def _stays_in_turn(world: World, disk: str) -> tuple[list[float], list[float], list[float]]:
    """Alternates reservations without and with a disk, so that other load on the machine affects both equally.

    Returns the starts without a disk, and the starts and ends with one."""
    without, starts, ends = [], [], []
    for number in range(_WARM_UP + _ROUNDS):
        plain, _ = await _stay(world, "none")
        start, end = await _stay(world, disk)
        if number >= _WARM_UP:
            without.append(plain)
            starts.append(start)
            ends.append(end)
    return without, starts, ends


async def _stay(world: World, disk: str) -> tuple[float, float]:
    began = time.perf_counter()
    rid = await _start(world, disk)
    started = time.perf_counter()
    await asyncio.sleep(0.2)  # until background work after the start is done
    ending = time.perf_counter()
    await _end(world, rid)
    ended = time.perf_counter()
    await asyncio.sleep(0.2)
    return started - began, ended - ending


async def _start(world: World, disk: str) -> ReservationId:
    rid = await world.submit(8, disk=disk)
    while (row := await world.get(rid)).status is not Status.ACTIVE:
        assert not row.status.is_terminal, row.failure_reason
        await asyncio.sleep(0.001)
    return rid


async def _end(world: World, rid: ReservationId) -> None:
    await world.cancel(rid)
    while not (await world.get(rid)).is_released:  # noqa: ASYNC110 - that is what is measured
        await asyncio.sleep(0.001)


def _fill(home: Path) -> None:
    content = os.urandom(107_374)
    for folder in range(100):
        path = home / f"folder{folder:03}"
        path.mkdir()
        for file in range(100):
            (path / f"file{file:03}").write_bytes(content)
    os.sync()


if __name__ == "__main__":
    run()
