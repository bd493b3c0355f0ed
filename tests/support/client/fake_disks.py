"""Disks as the fake API keeps them: in memory, with operations that are over when a test says so."""

import uuid
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpudev.wire.disks import (
    CloneDiskRequest,
    ContentsEntry,
    ContentsView,
    CreateDiskRequest,
    DiskDetails,
    DiskEventView,
    DiskList,
    DiskView,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
    SnapshotList,
    SnapshotView,
)

_KINDS = {
    "restore": RestoreDiskRequest,
    "rename": RenameDiskRequest,
    "resize": ResizeDiskRequest,
    "clone": CloneDiskRequest,
}


class NoSuchDisk(Exception):
    pass


class FakeDisks:
    def __init__(self) -> None:
        self.disks: dict[str, DiskDetails] = {}
        self.operations: dict[str, OperationView] = {}
        self.answered: dict[str, OperationView] = {}
        """By Idempotency-Key."""
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        """Kind, disk and body of what was carried out."""
        self.steps: list[dict[str, Any]] = [{"state": "done", "result": "done"}]
        """What each look at an operation shows next; the last one stays."""

    def add(self, name: str, **changes: Any) -> DiskDetails:
        base: dict[str, Any] = {field.name: None for field in fields(DiskDetails)}
        base |= {
            "disk_id": str(uuid.uuid4()),
            "disk_name": name,
            "state": "free",
            "size_gb": 100,
            "created_at": datetime.now(UTC),
            "in_use": False,
            "is_deleted": False,
            "snapshot_count": 0,
            "is_backing_up": False,
            "snapshots": [],
            "history": [],
        }
        disk = DiskDetails(**(base | changes))
        self.disks[disk.disk_id] = disk
        return disk

    def change(self, disk: DiskDetails, **changes: Any) -> DiskDetails:
        self.disks[disk.disk_id] = replace(self.disks[disk.disk_id], **changes)
        return self.disks[disk.disk_id]

    def called(self, name: str) -> DiskDetails:
        return self.find(name, deleted=False)

    def find(self, name: str, *, deleted: bool) -> DiskDetails:
        found = [one for one in self.disks.values() if one.disk_name == name and (deleted or not one.is_deleted)]
        if not found:
            raise NoSuchDisk(f"you have no disk {name!r}")
        return sorted(found, key=lambda one: one.is_deleted)[0]

    def look(self, path: list[str], query: dict[str, list[str]]) -> Any:
        deleted = query.get("deleted") == ["true"]
        match path:
            case []:
                shown = [one for one in self.disks.values() if deleted or not one.is_deleted]
                return DiskList(disks=[_plain(one) for one in shown])
            case [name]:
                return self.find(name, deleted=deleted)
            case [name, "snapshots"]:
                return SnapshotList(snapshots=self.find(name, deleted=deleted).snapshots)
            case [name, "contents"]:
                contents = self.find(name, deleted=deleted).contents
                if contents is None:
                    raise NoSuchDisk(f"no listing of disk {name!r} yet; one is made with each snapshot")
                return contents
            case [_, "operations", operation_id]:
                return self._move(operation_id)
            case _:
                raise NoSuchDisk("there is no such thing here")

    def act(
        self, method: str, path: list[str], body: Any, key: str, strict: Callable[[Any, Any], Any]
    ) -> OperationView:
        if key in self.answered:
            return self.answered[key]
        match [method, *path]:
            case ["POST"]:
                ask = strict(CreateDiskRequest, body)
                made = self.add(ask.disk_name, size_gb=ask.size_gb or 100)
                self.answered[key] = self._operation("create", made, body)
            case ["DELETE", name]:
                now = datetime.now(UTC)
                gone = self.change(
                    self.called(name),
                    is_deleted=True,
                    state="deleted",
                    deleted_at=now,
                    restorable_until=now + timedelta(days=30),
                )
                self.answered[key] = self._operation("delete", gone, {})
            case ["POST", name, "snapshots"]:
                self.answered[key] = self._operation("snapshot", self.called(name), {})
            case ["POST", name, kind] if kind in _KINDS:
                ask = strict(_KINDS[kind], body)
                self.answered[key] = self._operation(kind, self._changed(kind, name, ask), body)
            case _:
                raise NoSuchDisk("there is no such thing here")
        return self.answered[key]

    def _changed(self, kind: str, name: str, ask: Any) -> DiskDetails:
        match kind:
            case "restore" if ask.snapshot_id is None:
                back = {"is_deleted": False, "state": "free", "deleted_at": None, "restorable_until": None}
                return self.change(self.find(name, deleted=True), disk_name=ask.new_name or name, **back)
            case "rename":
                return self.change(self.called(name), disk_name=ask.new_name)
            case "resize":
                return self.change(self.called(name), size_gb=ask.size_gb)
            case "clone":
                return self.add(ask.new_name, size_gb=ask.size_gb or self.called(name).size_gb)
            case _:
                return self.called(name)

    def _operation(self, kind: str, disk: DiskDetails, body: dict[str, Any]) -> OperationView:
        self.asked.append((kind, disk.disk_name, body))
        operation = OperationView(
            operation_id=str(uuid.uuid4()),
            kind="undelete" if kind == "restore" and "snapshot_id" not in body else kind,
            disk_id=disk.disk_id,
            disk_name=disk.disk_name,
            state="waiting",
            step="waiting",
            result=None,
            error=None,
            asked_at=datetime.now(UTC),
            finished_at=None,
            reservation_id=None,
            snapshot_id=body.get("snapshot_id"),
        )
        self.operations[operation.operation_id] = operation
        return operation

    def _move(self, operation_id: str) -> OperationView:
        changes = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        self.operations[operation_id] = replace(self.operations[operation_id], **changes)
        return self.operations[operation_id]


def make_snapshot(**changes: Any) -> SnapshotView:
    base: dict[str, Any] = {
        "snapshot_id": str(uuid.uuid4()),
        "created_at": datetime.now(UTC),
        "why": "end of reservation",
        "status": "completed",
        "usable": True,
        "size_gb": 100,
        "is_current": False,
        "files": 3,
        "size_bytes": 3_200_000_000,
        "error": None,
    }
    return SnapshotView(**(base | changes))


def make_operation(**changes: Any) -> OperationView:
    base: dict[str, Any] = {
        "operation_id": str(uuid.uuid4()),
        "kind": "create",
        "disk_id": str(uuid.uuid4()),
        "disk_name": "data",
        "state": "done",
        "step": "done",
        "result": None,
        "error": None,
        "asked_at": datetime.now(UTC),
        "finished_at": datetime.now(UTC),
        "reservation_id": None,
        "snapshot_id": None,
    }
    return OperationView(**(base | changes))


def make_contents(*paths: str, files: int, folders: int = 0) -> ContentsView:
    now = datetime.now(UTC)
    entries = [ContentsEntry(path=path, kind="file", size_bytes=1500, modified_at=now) for path in paths]
    return ContentsView(
        as_of=now,
        snapshot_id=str(uuid.uuid4()),
        files=files,
        folders=folders,
        size_bytes=1500 * files,
        is_complete=len(paths) == files + folders,
        entries=entries,
    )


def make_line(message: str) -> DiskEventView:
    return DiskEventView(at=datetime.now(UTC), kind="create", message=message, by="ada")


def _plain(disk: DiskDetails) -> DiskView:
    return DiskView(**{field.name: getattr(disk, field.name) for field in fields(DiskView)})
