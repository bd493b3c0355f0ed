"""Formatting of disks: sizes and states. Pure; takes `now`."""

from datetime import datetime

from gpudev.cli.formatting import local_time, short_id
from gpudev.wire.disks import ContentsView, DiskView, OperationView, SnapshotView

_COLOURS = {
    "free": "green",
    "in use": "cyan",
    "busy": "yellow",
    "deleted": "dim",
    "failed": "red",
    "missing": "red",
}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def colour_of(disk: DiskView) -> str:
    return _COLOURS.get(disk.state, "dim")


def size_in_gigabytes(size_gb: int | None) -> str:
    return "-" if size_gb is None else f"{size_gb} GB"


def data_size(size_bytes: int) -> str:
    """'3.2 GB': two or three digits."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"


def time_or_never(time: datetime | None, now: datetime) -> str:
    return "never" if time is None else local_time(time, now)


def disk_situation(disk: DiskView, now: datetime) -> str:
    """The current situation in one line."""
    operation = disk.operation
    if disk.is_deleted:
        until = disk.restorable_until
        return (
            f"id {short_id(disk.disk_id)}, {f'restorable until {local_time(until, now)}' if until else 'being removed'}"
        )
    if disk.state == "missing":
        since = f" since {local_time(disk.volume_missing_since, now)}" if disk.volume_missing_since else ""
        restorable = "; its snapshots can be restored" if disk.snapshot_count else ""
        return f"volume {disk.volume_id} no longer exists{since}{restorable}"
    if disk.reservation_id is not None:
        return f"in use by reservation {short_id(disk.reservation_id)}"
    if operation is not None and operation.state in ("waiting", "running"):
        return operation_progress(operation)
    if operation is not None and operation.state == "failed":
        kind = operation.kind.replace("_", " ")
        what = "creation failed" if disk.state == "failed" else f"the last {kind} failed"
        return f"{what}: {operation.error or 'unknown reason'}"
    return "attached outside gpu-dev" if disk.in_use else ""


def operation_progress(operation: OperationView) -> str:
    trouble = f"; {operation.error}" if operation.error else ""
    return f"{operation.kind.replace('_', ' ')}: {operation.step}{trouble}"


def describe_as_of(contents: ContentsView, now: datetime) -> str:
    """The time of the listing, and whether later contents are unknown."""
    later = "" if contents.is_latest else "; later contents are unknown"
    return f"{time_or_never(contents.as_of, now)}{later}"


def snapshot_contents(snapshot: SnapshotView) -> str:
    if snapshot.files is None or snapshot.size_bytes is None:
        return "-"
    return f"{file_count(snapshot.files)}, {data_size(snapshot.size_bytes)}"


def file_count(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
