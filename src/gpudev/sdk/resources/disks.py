"""Disks."""

from collections.abc import Callable, Sequence

from gpudev.sdk.http import disk_endpoints
from gpudev.sdk.http.disk_endpoints import check_operation, wait_for_operation
from gpudev.sdk.http.endpoints import ApiCall
from gpudev.sdk.http.event_stream import read_patience
from gpudev.sdk.http.routines import Routine
from gpudev.sdk.resources.sync_async import AsyncResource, Resource, SyncResource, api_method
from gpudev.wire.disks import (
    CloneDiskRequest,
    ContentsView,
    CreateDiskRequest,
    DiskDetails,
    DiskView,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
    SnapshotView,
)

OnOperationChange = Callable[[OperationView], object]


class DiskMethods(Resource):
    """`client.disks`. Methods that change a disk wait until it is done, unless `wait=False`, and raise OperationFailed
    if the operation fails. `on_change` is called for every step."""

    @api_method
    def get(self, name: str, *, deleted: bool = False) -> Routine[DiskDetails]:
        """One disk with its snapshots, history and last known contents."""
        return self._client.fetch_value(disk_endpoints.get_disk(name, deleted=deleted))

    @api_method
    def snapshots(self, name: str, *, deleted: bool = False) -> Routine[Sequence[SnapshotView]]:
        """Its snapshots, newest first."""
        return (yield from self._client.fetch_value(disk_endpoints.list_snapshots(name, deleted=deleted))).snapshots

    @api_method
    def contents(self, name: str, snapshot_id: str | None = None, *, deleted: bool = False) -> Routine[ContentsView]:
        """Its contents at the given snapshot, by default the last one."""
        return self._client.fetch_value(disk_endpoints.get_contents(name, snapshot_id, deleted=deleted))

    @api_method
    def operations(self, name: str) -> Routine[Sequence[OperationView]]:
        """Its past and current operations."""
        return (yield from self._client.fetch_value(disk_endpoints.list_operations(name))).operations

    @api_method
    def create(
        self, name: str, *, size_gb: int | None = None, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Create a new, empty disk."""
        return self._run_operation(
            disk_endpoints.create_disk(CreateDiskRequest(disk_name=name, size_gb=size_gb)), wait, on_change
        )

    @api_method
    def delete(
        self, name: str, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Delete it. It can be restored for 30 days."""
        return self._run_operation(disk_endpoints.delete_disk(name), wait, on_change)

    @api_method
    def snapshot(
        self, name: str, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Take a snapshot, also while the disk is in use."""
        return self._run_operation(disk_endpoints.create_snapshot(name), wait, on_change)

    @api_method
    def restore(
        self,
        name: str,
        *,
        snapshot_id: str | None = None,
        new_name: str | None = None,
        disk_id: str | None = None,
        wait: bool = True,
        on_change: OnOperationChange | None = None,
    ) -> Routine[OperationView]:
        """Restore a deleted disk, or restore a disk to a snapshot."""
        request = RestoreDiskRequest(snapshot_id=snapshot_id, new_name=new_name, disk_id=disk_id)
        return self._run_operation(disk_endpoints.restore_disk(name, request), wait, on_change)

    @api_method
    def rename(
        self, name: str, new_name: str, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Rename it."""
        return self._run_operation(
            disk_endpoints.rename_disk(name, RenameDiskRequest(new_name=new_name)), wait, on_change
        )

    @api_method
    def resize(
        self, name: str, size_gb: int, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Enlarge it, also while it is in use."""
        return self._run_operation(
            disk_endpoints.resize_disk(name, ResizeDiskRequest(size_gb=size_gb)), wait, on_change
        )

    @api_method
    def clone(
        self,
        name: str,
        new_name: str,
        *,
        size_gb: int | None = None,
        snapshot_id: str | None = None,
        wait: bool = True,
        on_change: OnOperationChange | None = None,
    ) -> Routine[OperationView]:
        """Create a second disk with the same files, or with those of a snapshot."""
        request = CloneDiskRequest(new_name=new_name, size_gb=size_gb, snapshot_id=snapshot_id)
        return self._run_operation(disk_endpoints.clone_disk(name, request), wait, on_change)

    @api_method
    def list(self, *, deleted: bool = False) -> Routine[Sequence[DiskView]]:
        """Your disks; `deleted`: include those that can be restored."""
        return (yield from self._client.fetch_value(disk_endpoints.list_disks(deleted=deleted))).disks

    def _run_operation(
        self, call: ApiCall[OperationView], wait: bool, on_change: OnOperationChange | None
    ) -> Routine[OperationView]:
        reply = yield from self._client.fetch(call)
        if not wait:
            return reply.value
        patience = read_patience(self._session.env)
        reply = yield from wait_for_operation(self._client, reply, patience=patience, on_change=on_change)
        return check_operation(reply.value)


class Disks(DiskMethods, SyncResource):
    pass


class AsyncDisks(DiskMethods, AsyncResource):
    pass
