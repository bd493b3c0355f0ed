"""Which disk, snapshot or operation is meant."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gpudev.domain.disks.operations import (
    DiskState,
    OperationId,
    RecordedSnapshotId,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
)
from gpudev.domain.errors import AmbiguousId, Conflict, Invalid, NotFound
from gpudev.domain.ids import DiskId, UserId, new_disk_id
from gpudev.planning.disks.lookup import get_deleted_disk, get_living_disk, get_living_or_deleted_disk, get_snapshot

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def disk(name: str = "data", *, deleted: int | None = None) -> DiskState:
    """`deleted`: so many days ago."""
    at = None if deleted is None else NOW - timedelta(days=deleted)
    return DiskState(
        new_disk_id(), UserId(1), "ada", name, NOW - timedelta(days=90), is_deleted=at is not None, deleted_at=at
    )


def snapshot(of: DiskState, first_digits: str, status: SnapshotStatus = SnapshotStatus.COMPLETED) -> SnapshotRecord:
    snapshot_id = RecordedSnapshotId(UUID(first_digits.ljust(32, "0")))
    return SnapshotRecord(snapshot_id, of.disk_id, OperationId(UUID(int=1)), "vol-1", SnapshotReason.ASKED, status, NOW)


def test_a_name_means_the_living_disk_whatever_was_deleted() -> None:
    living = disk()
    assert get_living_disk([disk(deleted=1), living, disk("other")], "data") is living
    assert get_living_or_deleted_disk([disk(deleted=1), living], "data") is living


def test_who_asks_for_a_deleted_disk_is_told_how_to_have_it_back() -> None:
    with pytest.raises(NotFound, match="the one deleted on 2026-03-01 can be restored: `gpu-dev disk restore data`"):
        get_living_disk([disk(deleted=5), disk(deleted=1)], "data")
    with pytest.raises(NotFound, match=r"you have no disk 'data'$"):
        get_living_disk([disk("other"), replace(disk(deleted=31), purge_started_at=NOW)], "data")


def test_of_several_deleted_disks_the_last_one_is_meant_unless_an_id_says_otherwise() -> None:
    old, young = disk(deleted=5), disk(deleted=1)
    assert get_deleted_disk([old, young], "data") is young
    assert get_living_or_deleted_disk([old, young], "data") is young
    assert get_deleted_disk([old, young], "data", str(old.disk_id)) is old
    assert get_deleted_disk([old, young], "data", old.disk_id.hex[:12].upper()) is old


def test_what_is_not_deleted_or_is_being_purged_cannot_be_brought_back() -> None:
    living, purged = disk(), replace(disk(deleted=31), purge_started_at=NOW)
    with pytest.raises(Conflict, match="is not deleted"):
        get_deleted_disk([living], "data")
    with pytest.raises(NotFound):
        get_deleted_disk([purged], "data")
    with pytest.raises(NotFound):
        get_deleted_disk([living], "data", str(living.disk_id))


def test_a_snapshot_is_meant_by_its_beginning_among_those_of_the_disk_that_are_there() -> None:
    data, other = disk(), disk("other")
    one, two = snapshot(data, "abcd1"), snapshot(data, "abcd2")
    gone, failed = snapshot(data, "1111", SnapshotStatus.REMOVING), snapshot(data, "2222", SnapshotStatus.FAILED)
    everything = [one, two, gone, failed, snapshot(other, "3333")]
    assert get_snapshot(everything, data, "abcd1") is one
    assert get_snapshot(everything, data, str(two.snapshot_id)) is two
    with pytest.raises(AmbiguousId, match="abcd1000 or abcd2000"):
        get_snapshot(everything, data, "abcd")
    for text in ("1111", "2222", "3333", "ffff"):
        with pytest.raises(NotFound, match="disk 'data' has no snapshot"):
            get_snapshot(everything, data, text)
    for text in ("abc", "x" * 8, "", "a" * 40):
        with pytest.raises(Invalid):
            get_snapshot(everything, data, text)


def test_ids_that_begin_alike_are_told_in_full() -> None:
    data = disk()
    one, two = snapshot(data, "abcdabcd1"), snapshot(data, "abcdabcd2")
    with pytest.raises(AmbiguousId, match=f"{one.snapshot_id} or {two.snapshot_id}"):
        get_snapshot([one, two], data, "abcdabcd")


@pytest.mark.parametrize("name", ["Data", "", "a" * 64, "a/b", "a\n"])
def test_what_is_no_name_names_no_disk(name: str) -> None:
    for find in (get_living_disk, get_living_or_deleted_disk, get_deleted_disk):
        with pytest.raises(Invalid):
            find([replace(disk(), name=name, disk_id=DiskId(UUID(int=2)))], name)
