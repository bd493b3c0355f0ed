"""Finding a disk, snapshot or operation by name or id prefix.

The input contains only the caller's own objects; those of other users do not exist here.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from gpudev.domain.disks.names import check_disk_name
from gpudev.domain.disks.operations import (
    DiskState,
    Operation,
    OperationKind,
    OperationState,
    SnapshotRecord,
    SnapshotStatus,
)
from gpudev.domain.errors import Conflict, NotFound
from gpudev.domain.ids import ambiguous_id_error, parse_id_prefix
from gpudev.ports.disks import DiskOverview

_T = TypeVar("_T")
_FAILURES_SHOWN_FOR = timedelta(days=7)


def get_living_disk(disks: Iterable[DiskState], name: str) -> DiskState:
    """Raises NotFound, with a hint if a deleted disk has this name."""
    named = _disks_named(disks, name)
    for disk in named:
        if not disk.is_deleted:
            return disk
    raise NotFound(f"you have no disk {name!r}{_restore_hint(named)}")


def get_living_or_deleted_disk(disks: Iterable[DiskState], name: str) -> DiskState:
    """The living disk, else the one deleted last."""
    named = _disks_named(disks, name)
    if not named:
        raise NotFound(f"you have no disk {name!r}, and none of that name can be restored")
    return named[0]


def get_deleted_disk(disks: Iterable[DiskState], name: str, disk_id: str | None = None) -> DiskState:
    """The disk deleted last, or the one with this id."""
    named = _disks_named(disks, name)
    deleted = [disk for disk in named if disk.is_deleted]
    if disk_id is not None:
        by_id = [(disk.disk_id, disk) for disk in deleted]
        return _get_by_id(by_id, disk_id, "disk_id", f"none of your deleted disks {name!r} has the id")
    if deleted:
        return deleted[0]
    if named:
        raise Conflict(f"disk {name!r} is not deleted; name the snapshot to restore")
    raise NotFound(f"you have no disk {name!r}, and none of that name can be restored")


def get_snapshot(snapshots: Iterable[SnapshotRecord], disk: DiskState, text: str) -> SnapshotRecord:
    candidates = [
        (snapshot.snapshot_id, snapshot)
        for snapshot in snapshots
        if snapshot.disk_id == disk.disk_id and is_listed(snapshot)
    ]
    return _get_by_id(candidates, text, "snapshot_id", f"disk {disk.name!r} has no snapshot")


def get_operation(operations: Iterable[Operation], disk_name: str, text: str) -> Operation:
    candidates = [(each.operation_id, each) for each in operations]
    return _get_by_id(candidates, text, "operation_id", f"disk {disk_name!r} has no operation")


def is_listed(snapshot: SnapshotRecord) -> bool:
    """Whether owners see it: removed and failed ones are hidden."""
    return snapshot.status not in (SnapshotStatus.FAILED, SnapshotStatus.REMOVING, SnapshotStatus.REMOVED)


def was_never_made(disk: DiskOverview) -> bool:
    """Its creation failed: not a disk, but shown to its owner."""
    latest, state = disk.latest, disk.state
    if state.purge_started_at is None or state.volume_id is not None or latest is None:
        return False
    return latest.kind in (OperationKind.CREATE, OperationKind.CLONE) and latest.state is OperationState.FAILED


def failed_creations(disks: Sequence[DiskOverview], now: datetime) -> list[DiskOverview]:
    """Disks whose creation failed, the last of each name: for some days, or until a disk with that name exists."""
    living = {each.state.name for each in disks if not each.state.is_deleted}
    last: dict[str, DiskOverview] = {}
    for each in sorted(disks, key=lambda each: each.state.created_at):
        failed_at = each.state.deleted_at
        if each.state.name in living or failed_at is None or not was_never_made(each):
            continue
        if failed_at > now - _FAILURES_SHOWN_FOR:
            last[each.state.name] = each
    return list(last.values())


def _disks_named(disks: Iterable[DiskState], name: str) -> list[DiskState]:
    """The living one first, then deleted ones, the last deleted first. Without those being purged."""
    check_disk_name(name)
    found = [disk for disk in disks if disk.name == name and disk.purge_started_at is None]
    living = [disk for disk in found if not disk.is_deleted]
    deleted = [disk for disk in found if disk.is_deleted]
    return living + sorted(deleted, key=lambda disk: disk.deleted_at or disk.created_at, reverse=True)


def _restore_hint(deleted: Sequence[DiskState]) -> str:
    if not deleted or deleted[0].deleted_at is None:
        return ""
    day = deleted[0].deleted_at.date().isoformat()
    return f"; the one deleted on {day} can be restored: `gpu-dev disk restore {deleted[0].name}`"


def _get_by_id(candidates: Sequence[tuple[UUID, _T]], text: str, field: str, nothing: str) -> _T:
    digits = parse_id_prefix(text, field)
    found = [(key, value) for key, value in candidates if key.hex.startswith(digits)]
    if not found:
        raise NotFound(f"{nothing} {text!r}")
    if len(found) > 1:
        raise ambiguous_id_error(text, [one_id for one_id, _ in found])
    return found[0][1]
