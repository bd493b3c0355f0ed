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


# Waiting for an operation.


_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


def wait_for_operation(
    core: ApiClient,
    first: ApiReply[OperationView],
    *,
    patience: float,
    on_change: Callable[[OperationView], object] | None = None,
    on_lost: Callable[[str], object] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Routine[ApiReply[OperationView]]:
    """`on_change` is told of each look at it, `on_lost` when the API stays away; after `patience` seconds of that it
    is given up."""
    reply, heard_at = first, now()
    pauses = growing_pauses(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5)
    while reply.value.state not in ("done", "failed"):
        if on_change is not None:
            yield Notify(on_change, reply.value)
        yield Pause(next(pauses))
        try:
            reply = yield from core.fetch(get_operation(reply.value.disk_name, reply.value.operation_id))
        except Unreachable as error:
            if now() - heard_at > patience:
                raise
            if on_lost is not None:
                yield Notify(on_lost, error.message)
        else:
            heard_at = now()
    return reply


def check_operation(operation: OperationView) -> OperationView:
    """Raise what a failure means to somebody who waited."""
    if operation.state != "failed":
        return operation
    name = operation.disk_name
    is_new = operation.kind in ("create", "clone")
    raise OperationFailed(
        f"{operation.kind} of disk {name!r} failed: {operation.error or 'no reason was given'}",
        f"There is no disk {name!r}; everything else is as it was"
        if is_new
        else f"`gpu-dev disk show {name}` shows how it is",
    )
