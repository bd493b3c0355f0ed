"""Endpoints for disks, as data, and waiting for an operation."""

import time
from collections.abc import Callable

from gpudev.domain.backoff import growing_pauses
from gpudev.sdk.errors import OperationFailed, Unreachable
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiCall, ApiReply, idempotent_call, path_segment, read_call
from gpudev.sdk.http.routines import Notify, Pause, Routine
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
    selected = {} if snapshot_id is None else {"snapshot_id": snapshot_id}
    return read_call(ContentsView, _disk_path(name, "/contents"), (_DELETED if deleted else {}) | selected)


def list_operations(name: str) -> ApiCall[OperationList]:
    return read_call(OperationList, _disk_path(name, "/operations"))


def get_operation(name: str, operation_id: str) -> ApiCall[OperationView]:
    return read_call(OperationView, _disk_path(name, f"/operations/{path_segment(operation_id, 'operation')}"))


def create_disk(request: CreateDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", "/v1/disks", request)


def delete_disk(name: str) -> ApiCall[OperationView]:
    return _operation_call("DELETE", _disk_path(name))


def create_snapshot(name: str) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/snapshots"))


def restore_disk(name: str, request: RestoreDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/restore"), request)


def rename_disk(name: str, request: RenameDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/rename"), request)


def resize_disk(name: str, request: ResizeDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/resize"), request)


def clone_disk(name: str, request: CloneDiskRequest) -> ApiCall[OperationView]:
    return _operation_call("POST", _disk_path(name, "/clone"), request)


def _operation_call(method: str, path: str, request: object = None) -> ApiCall[OperationView]:
    body = None if request is None else codec.encode_model(request, without_none=True)
    return idempotent_call(OperationView, method, path, body)


def _disk_path(name: str, more: str = "") -> str:
    return f"/v1/disks/{path_segment(name, 'disk')}{more}"


# Waiting for an operation.


_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


def wait_for_operation(
    client: ApiClient,
    first: ApiReply[OperationView],
    *,
    patience: float,
    on_change: Callable[[OperationView], object] | None = None,
    on_lost: Callable[[str], object] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Routine[ApiReply[OperationView]]:
    """Poll until the operation is done or failed. Calls `on_change` after each poll and `on_lost` if the API does not
    respond; raises Unreachable after `patience` seconds without a response."""
    reply, received_at = first, now()
    pauses = growing_pauses(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5)
    while reply.value.state not in ("done", "failed"):
        if on_change is not None:
            yield Notify(on_change, reply.value)
        yield Pause(next(pauses))
        try:
            reply = yield from client.fetch(get_operation(reply.value.disk_name, reply.value.operation_id))
        except Unreachable as error:
            if now() - received_at > patience:
                raise
            if on_lost is not None:
                yield Notify(on_lost, error.message)
        else:
            received_at = now()
    return reply


def check_operation(operation: OperationView) -> OperationView:
    """Raises OperationFailed if it has failed."""
    if operation.state != "failed":
        return operation
    name = operation.disk_name
    is_new = operation.kind in ("create", "clone")
    raise OperationFailed(
        f"{operation.kind} of disk {name!r} failed: {operation.error or 'unknown reason'}",
        f"No disk {name!r} was created; nothing else has changed"
        if is_new
        else f"`gpu-dev disk show {name}` shows its state",
    )
