"""Disks as their owners see them, in the words of the wire. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.disks.operations import DiskState, Operation, RecordedSnapshotId, SnapshotRecord
from gpudev.planning.disks.lookup import is_listed, was_never_made
from gpudev.ports.disks import ContentsTotals, DiskEvent, DiskOverview, SnapshotContents
from gpudev.wire.disks import (
    ContentsEntry,
    ContentsView,
    DiskDetails,
    DiskEventView,
    DiskView,
    OperationView,
    SnapshotView,
)


def disk_view(disk: DiskOverview, retention: timedelta) -> DiskView:
    state, latest = disk.state, disk.latest
    is_deleted = state.is_deleted and not was_never_made(disk)
    return DiskView(
        disk_id=str(state.disk_id),
        disk_name=state.name,
        state=_disk_state(disk),
        size_gb=state.size_gb,
        created_at=state.created_at,
        last_used=disk.last_used,
        in_use=state.holder is not None,
        reservation_id=None if state.holder is None else str(state.holder),
        is_deleted=is_deleted,
        deleted_at=state.deleted_at if is_deleted else None,
        restorable_until=_restorable_until(state, retention),
        snapshot_count=disk.snapshot_count,
        last_snapshot_at=disk.last_snapshot_at,
        is_backing_up=disk.is_backing_up,
        volume_id=state.volume_id,
        zone=state.zone,
        operation=None if latest is None else operation_view(latest, state.name),
    )


@dataclass(frozen=True, slots=True)
class DiskDetailInput:
    """What there is to know about one disk beside its row."""

    snapshots: Sequence[SnapshotRecord]
    totals: Mapping[RecordedSnapshotId, ContentsTotals]
    history: Sequence[DiskEvent]
    listing: SnapshotContents | None


def disk_details(disk: DiskOverview, more: DiskDetailInput, retention: timedelta) -> DiskDetails:
    return DiskDetails(
        **vars(disk_view(disk, retention)),
        snapshots=snapshot_views(more.snapshots, disk.state, more.totals),
        history=[DiskEventView(at=one.at, kind=one.kind, message=one.message, by=one.by) for one in more.history],
        contents=None if more.listing is None else contents_view(more.listing),
    )


def operation_view(operation: Operation, disk_name: str) -> OperationView:
    return OperationView(
        operation_id=str(operation.operation_id),
        kind=operation.kind.value,
        disk_id=str(operation.disk_id),
        disk_name=disk_name,
        state=operation.state.value,
        step=operation.step,
        result=operation.result,
        error=operation.error,
        asked_at=operation.asked_at,
        finished_at=operation.finished_at,
        reservation_id=None if operation.reservation_id is None else str(operation.reservation_id),
        snapshot_id=None if operation.snapshot_id is None else str(operation.snapshot_id),
    )


def snapshot_views(
    snapshots: Iterable[SnapshotRecord], disk: DiskState, totals: Mapping[RecordedSnapshotId, ContentsTotals]
) -> list[SnapshotView]:
    return [_snapshot_view(one, disk, totals.get(one.snapshot_id)) for one in snapshots if is_listed(one)]


def contents_view(listing: SnapshotContents) -> ContentsView:
    contents = listing.contents
    return ContentsView(
        as_of=listing.as_of,
        snapshot_id=str(listing.snapshot_id),
        is_latest=listing.is_latest,
        files=contents.files,
        folders=contents.folders,
        size_bytes=contents.size_bytes,
        is_complete=contents.is_complete,
        is_counted=contents.is_counted,
        entries=[
            ContentsEntry(path=one.path, kind=one.kind.value, size_bytes=one.size, modified_at=one.modified_at)
            for one in contents.entries
        ],
    )


def _disk_state(disk: DiskOverview) -> str:
    if was_never_made(disk):
        return "failed"
    if disk.state.is_deleted:
        return "deleted"
    if disk.state.holder is not None:
        return "in use"
    under_way = disk.latest is not None and not disk.latest.state.is_finished
    return "busy" if under_way else "free"


def _restorable_until(state: DiskState, retention: timedelta) -> datetime | None:
    if state.deleted_at is None or state.purge_started_at is not None:
        return None
    return state.deleted_at + retention


def _snapshot_view(snapshot: SnapshotRecord, disk: DiskState, totals: ContentsTotals | None) -> SnapshotView:
    return SnapshotView(
        snapshot_id=str(snapshot.snapshot_id),
        created_at=snapshot.created_at,
        why=snapshot.why.value,
        status=snapshot.status.value,
        usable=snapshot.status.is_usable,
        size_gb=snapshot.size_gb,
        is_current=disk.saved_as == snapshot.snapshot_id,
        files=None if totals is None else totals.files,
        size_bytes=None if totals is None else totals.size_bytes,
        error=snapshot.error,
        lacks=snapshot.lacks,
    )
