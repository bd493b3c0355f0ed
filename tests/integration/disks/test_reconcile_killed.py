"""A disk pass that is killed at any moment, and run again, ends as one that was never disturbed."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any
from uuid import uuid4

import pytest

from gpudev.adapters.postgres.disks import records as disk_store
from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.settings import Settings
from gpudev.workflows.disks.reconcile_disks import DiskReconcileReport, DiskReconciliation
from support.clock import ManualClock
from support.disks.disk_rows import add
from support.paper_cloud import PaperCloud

pytestmark = pytest.mark.slow


class _KilledAfter(Awaitable[DiskReconcileReport | None]):
    """Lets a coroutine go on for so many steps. Then its connections are cut, as a kill does, and it never gets any
    further: what it does on its way out reaches nobody."""

    def __init__(self, work: Coroutine[Any, Any, DiskReconcileReport], stores: Stores, steps: int) -> None:
        self._work = work
        self._stores = stores
        self._steps = steps
        self.finished = False

    def __await__(self) -> Generator[Any, Any, DiskReconcileReport | None]:
        going = self._work.__await__()
        for _ in range(self._steps):
            try:
                awaited = next(going)
            except StopIteration as done:
                self.finished = True
                return done.value  # type: ignore[no-any-return]
            yield awaited
        pool = self._stores.pool._pool
        if pool is not None:
            pool.terminate()
        error: BaseException | None = asyncio.CancelledError()
        while True:
            try:
                awaited = going.throw(error) if error is not None else next(going)
            except BaseException:  # noqa: BLE001 - whatever it says on its way out, nobody hears it
                return None
            error = None
            yield awaited


async def _scene(stores: Stores, cloud: PaperCloud) -> None:
    await add(stores, "ada", "grown", ebs_volume_id="vol-1", size_gb=100)
    await add(stores, "ada", "unlinked", size_gb=100)
    await add(stores, "bob", "gone", ebs_volume_id="vol-gone", in_use=True, reservation_id=str(uuid4()))
    await add(stores, "bob", "same", ebs_volume_id="vol-3", size_gb=100, zone="zone-a")
    cloud.volume("vol-1", disk="grown", size_gb=300)
    cloud.volume("vol-2", disk="unlinked", attached=True)
    cloud.volume("vol-3", "bob", "same")
    cloud.volume("vol-4", "ghost", "lost")
    cloud.volume("vol-5", "ghost", "lost", day=3)
    cloud.volume("vol-6", "bob", "new")
    cloud.volume("vol-7", "not a user", "new")
    cloud.snapshot("snap-1", "vol-4")


async def _state(stores: Stores) -> tuple[list[Any], list[Any], list[Any]]:
    """Everything but the names that chance gives and the rows' own order."""
    async with stores.pool.acquire() as connection:
        disks = await connection.fetch(
            """
            SELECT u.username, d.disk_name, d.ebs_volume_id, d.size_gb, d.in_use, d.reservation_id, d.is_deleted,
                   d.snapshot_count, d.is_backing_up, d.last_snapshot_at, d.created_at, d.last_used
            FROM disks d JOIN api_users u USING (user_id) ORDER BY 1, 2
            """
        )
        events = await connection.fetch(
            """
            SELECT u.username, d.disk_name, e.kind, e.message, e.changes FROM disk_events e
            JOIN disks d USING (disk_id) JOIN api_users u USING (user_id) ORDER BY 1, 2, 3, 4
            """
        )
        users = await connection.fetch("SELECT username, is_active FROM api_users ORDER BY 1")
    return [tuple(row) for row in disks], [_without_chance(row) for row in events], [tuple(row) for row in users]


def _without_chance(row: Any) -> tuple[Any, ...]:
    changes = {name: pair for name, pair in row["changes"].items() if name != "reservation_id"}
    return (row["username"], row["disk_name"], row["kind"], row["message"], changes)


async def _empty(stores: Stores) -> None:
    async with stores.pool.acquire() as connection:
        await connection.execute("TRUNCATE disk_events, disks, api_users CASCADE")


async def test_killed_at_every_await_and_run_again_it_ends_as_one_clean_run(
    stores: Stores, settings: Settings, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "_BATCH_SIZE", 2)  # so that there is something between the first and the last write
    cloud = PaperCloud()
    await _scene(stores, cloud)
    clean = await DiskReconciliation(cloud, stores.disk_records, clock, "test").run()
    wanted = await _state(stores)
    assert (clean.statistics.updated, clean.statistics.created, clean.statistics.errors) == (3, 2, 1)
    halves = set()
    for steps in range(1, 2000):
        await _empty(stores)
        await _scene(stores, PaperCloud())
        own = open_stores(settings, max_connections=1)
        try:
            pass_ = DiskReconciliation(cloud, own.disk_records, clock, "test")
            killed = _KilledAfter(pass_.run(), own, steps)
            await killed
        finally:
            await own.close()
        halves.add(len((await _state(stores))[1]))
        if killed.finished:
            break
        await DiskReconciliation(cloud, stores.disk_records, clock, "test").run()
        assert await _state(stores) == wanted, f"killed after {steps} steps"
    else:
        raise AssertionError("it never ended")
    assert steps > 30, "it was killed at many places"
    assert len(halves) > 2, "also between writes"
