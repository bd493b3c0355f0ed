"""Disks on the wire."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

_STRICT: dict[str, Any] = {"extra": "forbid"}


def _doc(text: str, **constraints: Any) -> dict[str, Any]:
    return {"description": text, **constraints}


@dataclass(frozen=True, kw_only=True)
class CreateDiskRequest:
    """A new, empty disk. Unknown fields are refused."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    disk_name: str = field(metadata=_doc("1 to 63 of a-z, 0-9 and '-'; not 'none'", max_length=63))
    size_gb: int | None = field(
        default=None, metadata=_doc("In GB; absent: the usual size", ge=1, le=65536, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class RestoreDiskRequest:
    """Undoing a delete, or going back to a snapshot. Unknown fields are refused."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    snapshot_id: str | None = field(
        default=None,
        metadata=_doc(
            "Go back to this snapshot (its id, or 4 or more digits of it); absent: undo a delete", max_length=36
        ),
    )
    new_name: str | None = field(
        default=None, metadata=_doc("Undoing a delete: call it so, where its name is taken by now", max_length=63)
    )
    disk_id: str | None = field(
        default=None,
        metadata=_doc("Undoing a delete: which of several of that name; absent: the last one", max_length=36),
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

    new_name: str = field(metadata=_doc("What the new disk is called", max_length=63))
    size_gb: int | None = field(
        default=None, metadata=_doc("In GB; absent: as large as the source", ge=1, le=65536, strict=True)
    )
    snapshot_id: str | None = field(
        default=None,
        metadata=_doc(
            "From this snapshot of the source (its id, or 4 or more digits of it); absent: as it is now", max_length=36
        ),
    )


@dataclass(frozen=True, kw_only=True)
class OperationView:
    """Something that is done to a disk, from the request to its end."""

    operation_id: str
    kind: str = field(
        metadata=_doc(
            "create, snapshot, restore, undelete, clone, resize, rename, delete; by the system itself: make_ready, "
            "put_away, prune, purge"
        )
    )
    disk_id: str
    disk_name: str = field(metadata=_doc("As the disk is called now"))
    state: str = field(metadata=_doc("waiting, running, done or failed"))
    step: str = field(metadata=_doc("What is going on, in words"))
    result: str | None = field(metadata=_doc("Once it is done: what came of it, in words"))
    error: str | None = field(metadata=_doc("Why it failed, or what is in its way and tried again"))
    asked_at: datetime
    finished_at: datetime | None
    reservation_id: str | None = field(metadata=_doc("For which reservation"))
    snapshot_id: str | None = field(metadata=_doc("The snapshot that is restored or cloned"))


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
    """What was on a disk when its snapshot was taken."""

    as_of: datetime
    snapshot_id: str
    is_latest: bool = field(
        default=True,
        metadata=_doc("False: what was last on the disk is in a later snapshot, and not known"),
    )
    files: int = field(metadata=_doc("Everything except folders"))
    folders: int
    size_bytes: int
    is_complete: bool = field(metadata=_doc("Whether all of it is listed, or only what is nearest to the top"))
    is_counted: bool = field(
        default=True,
        metadata=_doc("False: there was no time to look at everything, and there is more than the totals say"),
    )
    entries: list[ContentsEntry]


@dataclass(frozen=True, kw_only=True)
class SnapshotView:
    snapshot_id: str
    created_at: datetime
    why: str = field(metadata=_doc("asked, end of reservation, scheduled, before restore, before move or for clone"))
    status: str = field(metadata=_doc("beginning, pending, completed or lost"))
    usable: bool = field(metadata=_doc("Whether it can be restored and cloned"))
    size_gb: int | None
    is_current: bool = field(metadata=_doc("Whether it holds exactly what is on the disk now"))
    files: int | None = field(metadata=_doc("How many files were on the disk; null: not known"))
    size_bytes: int | None = field(metadata=_doc("How much was on the disk; null: not known"))
    error: str | None
    lacks: str | None = field(
        default=None, metadata=_doc("What was on the disk and is not in it, in words; its volume is kept then")
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
            "free, in use, busy (something is done to it; see `operation`), deleted or failed (it could not be made, "
            "and is shown for some days; see `operation`)"
        )
    )
    size_gb: int | None = field(metadata=_doc("null: made when it is first used"))
    created_at: datetime
    last_used: datetime | None
    in_use: bool
    reservation_id: str | None = field(metadata=_doc("The reservation that holds it"))
    is_deleted: bool
    deleted_at: datetime | None
    restorable_until: datetime | None = field(metadata=_doc("Of a deleted one: until then it can be had back"))
    snapshot_count: int = field(metadata=_doc("Of those that can be restored"))
    last_snapshot_at: datetime | None
    is_backing_up: bool = field(metadata=_doc("A snapshot is not finished yet"))
    volume_id: str | None = field(metadata=_doc("The cloud's name of what it is kept on"))
    zone: str | None
    operation: OperationView | None = field(metadata=_doc("Under way, or else the last one"))


@dataclass(frozen=True, kw_only=True)
class DiskList:
    disks: list[DiskView]


@dataclass(frozen=True, kw_only=True)
class DiskDetails(DiskView):
    """One disk with its snapshots, the newest first, its history, the oldest first, and what was last on it."""

    snapshots: list[SnapshotView]
    history: list[DiskEventView]
    contents: ContentsView | None
