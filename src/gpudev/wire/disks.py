"""Disks on the wire."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

_STRICT: dict[str, Any] = {"extra": "forbid"}


def _doc(text: str, **constraints: Any) -> dict[str, Any]:
    return {"description": text, **constraints}


@dataclass(frozen=True, kw_only=True)
class CreateDiskRequest:
    """A new, empty disk. Unknown fields are rejected."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    disk_name: str = field(metadata=_doc("1 to 63 of a-z, 0-9 and '-'; not 'none'", max_length=63))
    size_gb: int | None = field(
        default=None, metadata=_doc("In GB; absent: the default size", ge=1, le=65536, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class RestoreDiskRequest:
    """Undelete a disk, or restore a snapshot. Unknown fields are rejected."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    snapshot_id: str | None = field(
        default=None,
        metadata=_doc("The snapshot to restore (its id, or at least 4 digits of it); absent: undelete", max_length=36),
    )
    new_name: str | None = field(
        default=None, metadata=_doc("Undelete: a new name, if the old one is taken", max_length=63)
    )
    disk_id: str | None = field(
        default=None,
        metadata=_doc("Undelete: which disk of that name; absent: the one deleted last", max_length=36),
    )


@dataclass(frozen=True, kw_only=True)
class RenameDiskRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    new_name: str = field(metadata=_doc("1 to 63 of a-z, 0-9 and '-'; not 'none'", max_length=63))


@dataclass(frozen=True, kw_only=True)
class ResizeDiskRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    size_gb: int = field(metadata=_doc("In GB; disks only grow", ge=1, le=65536, strict=True))


@dataclass(frozen=True, kw_only=True)
class CloneDiskRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    new_name: str = field(metadata=_doc("The new disk's name", max_length=63))
    size_gb: int | None = field(
        default=None, metadata=_doc("In GB; absent: as large as the source", ge=1, le=65536, strict=True)
    )
    snapshot_id: str | None = field(
        default=None,
        metadata=_doc(
            "The snapshot to clone (its id, or at least 4 digits of it); absent: the current state", max_length=36
        ),
    )


@dataclass(frozen=True, kw_only=True)
class OperationView:
    """One operation on a disk, from the request to its end."""

    operation_id: str
    kind: str = field(
        metadata=_doc(
            "create, snapshot, restore, undelete, clone, resize, rename, delete; by the system: make_ready, "
            "put_away, prune, purge"
        )
    )
    disk_id: str
    disk_name: str = field(metadata=_doc("The disk's current name"))
    state: str = field(metadata=_doc("waiting, running, done or failed"))
    step: str = field(metadata=_doc("The current step, for people"))
    result: str | None = field(metadata=_doc("When done: the result, for people"))
    error: str | None = field(metadata=_doc("Why it failed, or the error that is being retried"))
    asked_at: datetime
    finished_at: datetime | None
    reservation_id: str | None = field(metadata=_doc("The reservation it is for"))
    snapshot_id: str | None = field(metadata=_doc("The snapshot to restore or clone"))


@dataclass(frozen=True, kw_only=True)
class OperationList:
    operations: list[OperationView]


@dataclass(frozen=True, kw_only=True)
class ContentsEntry:
    path: str
    kind: str = field(metadata=_doc("file, folder, link or other"))
    size_bytes: int
    modified_at: datetime


@dataclass(frozen=True, kw_only=True)
class ContentsView:
    """A disk's contents at the time of a snapshot."""

    as_of: datetime
    snapshot_id: str
    is_latest: bool = field(
        default=True,
        metadata=_doc("False: the disk's last state is in a later snapshot without a listing"),
    )
    files: int = field(metadata=_doc("Everything except folders"))
    folders: int
    size_bytes: int
    is_complete: bool = field(metadata=_doc("Whether all entries are listed, or only those nearest to the top"))
    is_counted: bool = field(
        default=True,
        metadata=_doc("False: not everything could be read in time, and the totals are too low"),
    )
    entries: list[ContentsEntry]


@dataclass(frozen=True, kw_only=True)
class SnapshotView:
    snapshot_id: str
    created_at: datetime
    why: str = field(
        metadata=_doc("asked, end of reservation, scheduled, before restore, before move, for clone or imported")
    )
    status: str = field(metadata=_doc("beginning, pending, completed or lost"))
    usable: bool = field(metadata=_doc("Whether it can be restored and cloned"))
    size_gb: int | None
    is_current: bool = field(metadata=_doc("Whether it equals the disk's current state"))
    files: int | None = field(metadata=_doc("Number of files; null: unknown"))
    size_bytes: int | None = field(metadata=_doc("Bytes used; null: unknown"))
    error: str | None
    lacks: str | None = field(
        default=None, metadata=_doc("What is missing from it, for people; its volume is kept then")
    )


@dataclass(frozen=True, kw_only=True)
class SnapshotList:
    snapshots: list[SnapshotView]


@dataclass(frozen=True, kw_only=True)
class DiskEventView:
    """One line of a disk's history."""

    at: datetime
    kind: str
    message: str
    by: str


@dataclass(frozen=True, kw_only=True)
class DiskView:
    disk_id: str
    disk_name: str
    state: str = field(
        metadata=_doc(
            "free, in use, busy (see `operation`), deleted, missing (the cloud no longer has its volume; a snapshot "
            "can be restored) or failed (it could not be created, and is shown for some days; see `operation`)"
        )
    )
    size_gb: int | None = field(metadata=_doc("null: created at first use"))
    created_at: datetime
    last_used: datetime | None
    in_use: bool
    reservation_id: str | None = field(metadata=_doc("The reservation that holds it"))
    is_deleted: bool
    deleted_at: datetime | None
    restorable_until: datetime | None = field(metadata=_doc("Of a deleted disk: until then it can be restored"))
    snapshot_count: int = field(metadata=_doc("Number of usable snapshots"))
    last_snapshot_at: datetime | None
    is_backing_up: bool = field(metadata=_doc("A snapshot is not complete yet"))
    volume_id: str | None = field(metadata=_doc("The cloud's id of its volume"))
    volume_missing_since: datetime | None = field(
        default=None, metadata=_doc("When the cloud first lacked its volume; null: it is there, or was never created")
    )
    zone: str | None
    operation: OperationView | None = field(metadata=_doc("The running operation, else the last one"))


@dataclass(frozen=True, kw_only=True)
class DiskList:
    disks: list[DiskView]


@dataclass(frozen=True, kw_only=True)
class DiskDetails(DiskView):
    """One disk with its snapshots (newest first), its history (oldest first) and its last contents."""

    snapshots: list[SnapshotView]
    history: list[DiskEventView]
    contents: ContentsView | None
