"""What can be asked about disks, as data."""

from gpudev.sdk.http.endpoints import ApiCall, idempotent_call, path_segment, read_call
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


def list_disks(*, deleted: bool = False) -> ApiCall[DiskList]:
    return read_call(DiskList, "/v1/disks", _DELETED if deleted else None)


def get_disk(name: str, *, deleted: bool = False) -> ApiCall[DiskDetails]:
    return read_call(DiskDetails, _disk_path(name), _DELETED if deleted else None)


def list_snapshots(name: str, *, deleted: bool = False) -> ApiCall[SnapshotList]:
    return read_call(SnapshotList, _disk_path(name, "/snapshots"), _DELETED if deleted else None)


def get_contents(name: str, snapshot_id: str | None = None, *, deleted: bool = False) -> ApiCall[ContentsView]:
    wanted = {} if snapshot_id is None else {"snapshot_id": snapshot_id}
    return read_call(ContentsView, _disk_path(name, "/contents"), (_DELETED if deleted else {}) | wanted)


def list_operations(name: str) -> ApiCall[OperationList]:
    return read_call(OperationList, _disk_path(name, "/operations"))


def get_operation(name: str, operation_id: str) -> ApiCall[OperationView]:
    return read_call(OperationView, _disk_path(name, f"/operations/{path_segment(operation_id, 'operation')}"))


def create_disk(ask: CreateDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", "/v1/disks", ask)


def delete_disk(name: str) -> ApiCall[OperationView]:
    return _operation_call("DELETE", _disk_path(name))


def create_snapshot(name: str) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/snapshots"))


def restore_disk(name: str, ask: RestoreDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/restore"), ask)


def rename_disk(name: str, ask: RenameDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/rename"), ask)


def resize_disk(name: str, ask: ResizeDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/resize"), ask)


def clone_disk(name: str, ask: CloneDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/clone"), ask)


def _operation_call(method: str, path: str, ask: object = None) -> ApiCall[OperationView]:
    body = None if ask is None else codec.encode_model(ask, without_none=True)
    return idempotent_call(OperationView, method, path, body)


def _disk_path(name: str, more: str = "") -> str:
    return f"/v1/disks/{path_segment(name, 'disk')}{more}"
