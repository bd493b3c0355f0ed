"""What was on a disk whose volume nobody can look into: the dev server says so before it goes, or it is not known."""

from datetime import UTC, datetime

import pytest

from gpudev.domain.disks.contents import Contents, DiskEntry, DiskEntryKind
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.ports.disks import SnapshotContents
from support.disks.disk_processor import DiskStays


def _contents(*names: str) -> Contents:
    entries = tuple(DiskEntry(name, DiskEntryKind.FILE, 5, datetime(2026, 1, 2, tzinfo=UTC)) for name in names)
    return Contents(len(names), 0, 5 * len(names), entries)


async def _end(stays: DiskStays, rid: ReservationId) -> None:
    await stays.cancel(rid)
    await stays.go_on()
    assert await stays.is_released(rid)


async def _listing(stays: DiskStays) -> SnapshotContents | None:
    return await stays.stores.disk_views.find_snapshot_contents((await stays.disk()).disk_id)


async def test_what_the_dev_server_said_before_it_went_is_kept_with_the_snapshot(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.cluster.homes[rid] = _contents("notes.txt", "train.py")
    ended_at = stays.clock.now()
    await _end(stays, rid)
    [snapshot] = await stays.snapshots()
    found = await _listing(stays)
    assert found is not None
    assert (found.contents, found.snapshot_id, found.is_latest) == (
        _contents("notes.txt", "train.py"),
        snapshot.snapshot_id,
        True,
    )
    assert found.as_of == ended_at, "when somebody looked, not when the snapshot was taken"
    assert (await stays.stores.disk_views.load_contents_totals(snapshot.disk_id))[snapshot.snapshot_id].files == 2


async def test_where_the_dev_server_could_say_nothing_the_former_stays_and_is_called_so(stays: DiskStays) -> None:
    first = await stays.start()
    stays.cluster.homes[first] = _contents("former")
    await _end(stays, first)
    second = await stays.start()
    stays.write(second, "changed")
    stays.cluster.homes[second] = _contents("never said")
    stays.cluster.kill(second)
    await stays.go_on()
    assert await stays.is_released(second)
    found = await _listing(stays)
    assert found is not None
    assert (found.contents, found.is_latest) == (_contents("former"), False)


async def test_the_last_word_before_the_end_counts(stays: DiskStays) -> None:
    """The API server was away while it was to be taken down, and somebody went on writing."""
    rid = await stays.start()
    stays.cluster.homes[rid] = _contents("early")
    stays.cluster.slow_to_go = True
    await stays.cancel(rid)
    await stays.go_on()
    stays.cluster.homes[rid] = _contents("early", "late")
    stays.clock.move(minutes=1)
    stays.cluster.slow_to_go = False
    await stays.go_on()
    found = await _listing(stays)
    assert found is not None and found.contents == _contents("early", "late")


async def test_no_end_waits_for_a_listing_that_cannot_be_written_down(
    stays: DiskStays, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = await stays.start()
    stays.cluster.homes[rid] = _contents("lost")

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(stays.stores.disk_contents, "save_reported_contents", away)
    await _end(stays, rid)
    assert await _listing(stays) is None
    assert len(await stays.snapshots()) == 1


async def test_what_was_heard_is_forgotten_once_a_snapshot_has_it(stays: DiskStays) -> None:
    rid = await stays.start()
    stays.cluster.homes[rid] = _contents("a")
    await _end(stays, rid)
    stays.clock.move(minutes=20)
    await stays.work.run_round()
    async with stays.stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM disk_listings") == 0
        assert await connection.fetchval("SELECT count(*) FROM disk_contents") == 1
