"""What can be asked about disks, as data."""

from gpudev.sdk.http.endpoints import Call, acting_once, in_path, reading
from gpudev.wire import codec
from gpudev.wire.disks import (
    CloneDiskRequest,
    ContentsView,
    CreateDiskRequest,
    DiskDetails,
    DiskList,
    OperationList,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
    SnapshotList,
)

_DELETED = {"deleted": "true"}


def list_disks(*, deleted: bool = False) -> Call[DiskList]:
    return reading(DiskList, "/v1/disks", _DELETED if deleted else None)


def get_disk(name: str, *, deleted: bool = False) -> Call[DiskDetails]:
    return reading(DiskDetails, _path(name), _DELETED if deleted else None)


def snapshots(name: str, *, deleted: bool = False) -> Call[SnapshotList]:
    return reading(SnapshotList, _path(name, "/snapshots"), _DELETED if deleted else None)


def contents(name: str, snapshot_id: str | None = None, *, deleted: bool = False) -> Call[ContentsView]:
    wanted = {} if snapshot_id is None else {"snapshot_id": snapshot_id}
    return reading(ContentsView, _path(name, "/contents"), (_DELETED if deleted else {}) | wanted)


def operations(name: str) -> Call[OperationList]:
    return reading(OperationList, _path(name, "/operations"))


def operation(name: str, operation_id: str) -> Call[OperationView]:
    return reading(OperationView, _path(name, f"/operations/{in_path(operation_id, 'operation')}"))


def create(ask: CreateDiskRequest) -> Call[OperationView]:
    return _act("POST", "/v1/disks", ask)


def delete(name: str) -> Call[OperationView]:
    return _act("DELETE", _path(name))


def snapshot(name: str) -> Call[OperationView]:
    return _act("POST", _path(name, "/snapshots"))


def restore(name: str, ask: RestoreDiskRequest) -> Call[OperationView]:
    return _act("POST", _path(name, "/restore"), ask)


def rename(name: str, ask: RenameDiskRequest) -> Call[OperationView]:
    return _act("POST", _path(name, "/rename"), ask)


def resize(name: str, ask: ResizeDiskRequest) -> Call[OperationView]:
    return _act("POST", _path(name, "/resize"), ask)


def clone(name: str, ask: CloneDiskRequest) -> Call[OperationView]:
    return _act("POST", _path(name, "/clone"), ask)


def _act(method: str, path: str, ask: object = None) -> Call[OperationView]:
    body = None if ask is None else codec.encode_model(ask, without_none=True)
    return acting_once(OperationView, method, path, body)


def _path(name: str, more: str = "") -> str:
    return f"/v1/disks/{in_path(name, 'disk')}{more}"
