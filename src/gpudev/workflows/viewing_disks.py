"""Disks as their owners see them, in the words of the wire. Pure, but for reading a listing that was kept as JSON."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpudev.domain.disk_operations import DiskState, Operation, SnapshotRecord
from gpudev.planning.disk_choices import is_shown
from gpudev.ports.disks import DiskEvent, DiskOverview
from gpudev.wire import codec
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
    return DiskView(
        disk_id=str(state.disk_id),
        disk_name=state.name,
        state=_situation(disk),
        size_gb=state.size_gb,
        created_at=state.created_at,
        last_used=disk.last_used,
        in_use=state.holder is not None,
        reservation_id=None if state.holder is None else str(state.holder),
        is_deleted=state.is_deleted,
        deleted_at=state.deleted_at,
        restorable_until=_restorable_until(state, retention),
        snapshot_count=disk.snapshot_count,
        last_snapshot_at=disk.last_snapshot_at,
        is_backing_up=disk.is_backing_up,
        volume_id=state.volume_id,
        zone=state.zone,
        operation=None if latest is None else operation_view(latest, state.name),
    )


def disk_details(
    disk: DiskOverview, snapshots: Sequence[SnapshotRecord], history: Iterable[DiskEvent], retention: timedelta
) -> DiskDetails:
    return DiskDetails(
        **vars(disk_view(disk, retention)),
        snapshots=snapshot_views(snapshots, disk.state),
        history=[DiskEventView(at=one.at, kind=one.kind, message=one.message, by=one.by) for one in history],
        contents=last_contents(snapshots, disk.state),
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


def snapshot_views(snapshots: Iterable[SnapshotRecord], disk: DiskState) -> list[SnapshotView]:
    return [_snapshot_view(one, disk) for one in snapshots if is_shown(one)]


def last_contents(snapshots: Sequence[SnapshotRecord], disk: DiskState) -> ContentsView | None:
    """The newest listing there is; `snapshots` come the newest first."""
    of_snapshots = (snapshot_contents(one) for one in snapshots if is_shown(one))
    return next(filter(None, of_snapshots), None) or _contents(disk.contents, None, None)


def snapshot_contents(snapshot: SnapshotRecord) -> ContentsView | None:
    return _contents(snapshot.contents, snapshot.created_at, str(snapshot.snapshot_id))


def _situation(disk: DiskOverview) -> str:
    if disk.state.is_deleted:
        return "deleted"
    if disk.state.holder is not None:
        return "in use"
    under_way = disk.latest is not None and not disk.latest.state.is_over
    return "busy" if under_way else "free"


def _restorable_until(state: DiskState, retention: timedelta) -> datetime | None:
    if state.deleted_at is None or state.purge_started_at is not None:
        return None
    return state.deleted_at + retention


def _snapshot_view(snapshot: SnapshotRecord, disk: DiskState) -> SnapshotView:
    contents = snapshot_contents(snapshot)
    return SnapshotView(
        snapshot_id=str(snapshot.snapshot_id),
        created_at=snapshot.created_at,
        why=snapshot.why.value,
        status=snapshot.status.value,
        usable=snapshot.status.is_good,
        size_gb=snapshot.size_gb,
        is_current=disk.saved_as == snapshot.snapshot_id,
        files=None if contents is None else contents.files,
        size_bytes=None if contents is None else contents.size_bytes,
        error=snapshot.error,
    )


def _contents(text: str | None, as_of: datetime | None, snapshot_id: str | None) -> ContentsView | None:
    """From a listing as it is kept: totals, and entries of path, kind, size and date. What is kept elsewhere, or in
    another form, is not shown."""
    if text is None or not text.startswith("{"):
        return None
    try:
        kept = json.loads(text)
        entries = [
            ContentsEntry(path=path, kind=kind, size_bytes=size, modified_at=datetime.fromisoformat(modified_at))
            for path, kind, size, modified_at in kept["entries"]
        ]
        files, folders = kept["files"], kept["folders"]
        view = ContentsView(
            as_of=as_of,
            snapshot_id=snapshot_id,
            files=files,
            folders=folders,
            size_bytes=kept["size_bytes"],
            is_complete=len(entries) == files + folders,
            entries=entries,
        )
        return codec.read(ContentsView, codec.write(view))  # whoever wrote it, it is what the model says
    except (ValueError, KeyError, TypeError):
        return None
