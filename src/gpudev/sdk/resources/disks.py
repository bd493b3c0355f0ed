"""Disks for programs."""

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
    """`client.disks`. What changes a disk waits until it is done, unless `wait=False`; it raises OperationFailed when
    it was tried and failed. `on_change` is told of every step."""

    @api_method
    def get(self, name: str, *, deleted: bool = False) -> Routine[DiskDetails]:
        """One disk with its snapshots, its history and what was last on it."""
        return self._client.fetch_value(disk_endpoints.get_disk(name, deleted=deleted))

    @api_method
    def snapshots(self, name: str, *, deleted: bool = False) -> Routine[Sequence[SnapshotView]]:
        """Its snapshots, the newest first."""
        return (yield from self._client.fetch_value(disk_endpoints.list_snapshots(name, deleted=deleted))).snapshots

    @api_method
    def contents(self, name: str, snapshot_id: str | None = None, *, deleted: bool = False) -> Routine[ContentsView]:
        """What was on it when its last snapshot was taken, or that one."""
        return self._client.fetch_value(disk_endpoints.get_contents(name, snapshot_id, deleted=deleted))

    @api_method
    def operations(self, name: str) -> Routine[Sequence[OperationView]]:
        """What was done to it, and what is being done."""
        return (yield from self._client.fetch_value(disk_endpoints.list_operations(name))).operations

    @api_method
    def create(
        self, name: str, *, size_gb: int | None = None, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """A new, empty disk."""
        return self._run_operation(
            disk_endpoints.create_disk(CreateDiskRequest(disk_name=name, size_gb=size_gb)), wait, on_change
        )

    @api_method
    def delete(
        self, name: str, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Delete it; for 30 days it can be restored."""
        return self._run_operation(disk_endpoints.delete_disk(name), wait, on_change)

    @api_method
    def snapshot(
        self, name: str, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Keep it as it is now, also while it is in use."""
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
        """Bring a deleted one back, or take one back to a snapshot."""
        ask = RestoreDiskRequest(snapshot_id=snapshot_id, new_name=new_name, disk_id=disk_id)
        return self._run_operation(disk_endpoints.restore_disk(name, ask), wait, on_change)

    @api_method
    def rename(
        self, name: str, new_name: str, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Give it another name."""
        return self._run_operation(
            disk_endpoints.rename_disk(name, RenameDiskRequest(new_name=new_name)), wait, on_change
        )

    @api_method
    def resize(
        self, name: str, size_gb: int, *, wait: bool = True, on_change: OnOperationChange | None = None
    ) -> Routine[OperationView]:
        """Make it larger, also while it is in use."""
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
        """A second disk with the same files, or with those of a snapshot."""
        ask = CloneDiskRequest(new_name=new_name, size_gb=size_gb, snapshot_id=snapshot_id)
        return self._run_operation(disk_endpoints.clone_disk(name, ask), wait, on_change)

    @api_method
    def list(self, *, deleted: bool = False) -> Routine[Sequence[DiskView]]:
        """Your disks; `deleted`: those that can be restored, too."""
        return (yield from self._client.fetch_value(disk_endpoints.list_disks(deleted=deleted))).disks

    def _run_operation(
        self, call: ApiCall[OperationView], wait: bool, on_change: OnOperationChange | None
    ) -> Routine[OperationView]:
        reply = yield from self._client.fetch(call)
        if not wait:
            return reply.value
        patient_for = read_patience(self._session.env)
        over = yield from wait_for_operation(self._client, reply, patience=patient_for, on_change=on_change)
        return check_operation(over.value)


class Disks(DiskMethods, SyncResource):
    pass


class AsyncDisks(DiskMethods, AsyncResource):
    pass
