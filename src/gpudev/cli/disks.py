"""Disks as the commands ask for them: paths, typed answers, and refusals that name the next step for disks."""

import uuid
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote, urlencode

from gpudev.cli.api import Api, Reply
from gpudev.sdk.errors import NotFound, Unreachable
from gpudev.wire import codec
from gpudev.wire.disks import (
    CloneDiskRequest,
    ContentsView,
    CreateDiskRequest,
    DiskDetails,
    DiskList,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
    SnapshotList,
)

_T = TypeVar("_T")


class Disks:
    def __init__(self, api: Api) -> None:
        self._api = api

    def all(self, *, deleted: bool) -> Reply[DiskList]:
        return self._read(DiskList, list_path(deleted=deleted))

    def get(self, name: str, *, deleted: bool = False) -> Reply[DiskDetails]:
        return self._read(DiskDetails, _path(name, deleted=deleted))

    def snapshots(self, name: str, *, deleted: bool = False) -> Reply[SnapshotList]:
        return self._read(SnapshotList, _path(name, "/snapshots", deleted=deleted))

    def contents(self, name: str, snapshot_id: str | None, *, deleted: bool = False) -> Reply[ContentsView]:
        return self._read(ContentsView, _path(name, "/contents", deleted=deleted, snapshot_id=snapshot_id))

    def operation(self, name: str, operation_id: str) -> Reply[OperationView]:
        return self._read(OperationView, _path(name, f"/operations/{operation_id}"))

    def create(self, ask: CreateDiskRequest) -> Reply[OperationView]:
        return self._act("POST", "/v1/disks", ask)

    def delete(self, name: str) -> Reply[OperationView]:
        return self._act("DELETE", _path(name))

    def snapshot(self, name: str) -> Reply[OperationView]:
        return self._act("POST", _path(name, "/snapshots"))

    def restore(self, name: str, ask: RestoreDiskRequest) -> Reply[OperationView]:
        return self._act("POST", _path(name, "/restore"), ask)

    def rename(self, name: str, ask: RenameDiskRequest) -> Reply[OperationView]:
        return self._act("POST", _path(name, "/rename"), ask)

    def resize(self, name: str, ask: ResizeDiskRequest) -> Reply[OperationView]:
        return self._act("POST", _path(name, "/resize"), ask)

    def clone(self, name: str, ask: CloneDiskRequest) -> Reply[OperationView]:
        return self._act("POST", _path(name, "/clone"), ask)

    def _read(self, model: type[_T], path: str) -> Reply[_T]:
        return _with_next_step(lambda: self._api.read(model, path))

    def _act(self, method: str, path: str, ask: object = None) -> Reply[OperationView]:
        body = None if ask is None else codec.write(ask, without_none=True)
        key = str(uuid.uuid4())
        try:
            return _with_next_step(lambda: self._api.act(OperationView, method, path, body, idempotency_key=key))
        except Unreachable as error:
            if not error.sent:
                raise
            step = "It may have been heard all the same; `gpu-dev disk list` shows how your disks are"
            raise error.advising(step) from error


def list_path(*, deleted: bool) -> str:
    return "/v1/disks?deleted=true" if deleted else "/v1/disks"


def _path(name: str, more: str = "", *, deleted: bool = False, snapshot_id: str | None = None) -> str:
    query = {"deleted": "true"} if deleted else {}
    query |= {"snapshot_id": snapshot_id} if snapshot_id is not None else {}
    return f"/v1/disks/{quote(name, safe='')}{more}{f'?{urlencode(query)}' if query else ''}"


def _with_next_step(ask: Callable[[], Reply[_T]]) -> Reply[_T]:
    try:
        return ask()
    except NotFound as error:
        if "`gpu-dev" in error.message:
            raise
        step = "`gpu-dev disk list` shows your disks, `gpu-dev disk snapshots NAME` their snapshots"
        raise error.advising(step) from error
