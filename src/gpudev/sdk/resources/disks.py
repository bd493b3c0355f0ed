"""Disks, as programs use them."""

from collections.abc import Callable, Sequence

from gpudev.sdk.disk_waiting import check_done, wait_until_over
from gpudev.sdk.effects import Routine
from gpudev.sdk.http import disk_endpoints
from gpudev.sdk.http.endpoints import Call
from gpudev.sdk.http.event_stream import patience
from gpudev.sdk.offering import Awaiting, Blocking, Group, offered
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

OnChange = Callable[[OperationView], object]


class DiskMethods(Group):
    """`client.disks`. What changes a disk waits until it is done, unless `wait=False`; it raises OperationFailed when
    it was tried and failed. `on_change` is told of every step."""

    @offered
    def get(self, name: str, *, deleted: bool = False) -> Routine[DiskDetails]:
        """One disk with its snapshots, its history and what was last on it."""
        return self._core.value(disk_endpoints.get_disk(name, deleted=deleted))

    @offered
    def snapshots(self, name: str, *, deleted: bool = False) -> Routine[Sequence[SnapshotView]]:
        """Its snapshots, the newest first."""
        return (yield from self._core.value(disk_endpoints.snapshots(name, deleted=deleted))).snapshots

    @offered
    def contents(self, name: str, snapshot_id: str | None = None, *, deleted: bool = False) -> Routine[ContentsView]:
        """What was on it when its last snapshot was taken, or that one."""
        return self._core.value(disk_endpoints.contents(name, snapshot_id, deleted=deleted))

    @offered
    def operations(self, name: str) -> Routine[Sequence[OperationView]]:
        """What was done to it, and what is being done."""
        return (yield from self._core.value(disk_endpoints.operations(name))).operations

    @offered
    def create(
        self, name: str, *, size_gb: int | None = None, wait: bool = True, on_change: OnChange | None = None
    ) -> Routine[OperationView]:
        """A new, empty disk."""
        return self._done(disk_endpoints.create(CreateDiskRequest(disk_name=name, size_gb=size_gb)), wait, on_change)

    @offered
    def delete(self, name: str, *, wait: bool = True, on_change: OnChange | None = None) -> Routine[OperationView]:
        """Delete it; for 30 days it can be restored."""
        return self._done(disk_endpoints.delete(name), wait, on_change)

    @offered
    def snapshot(self, name: str, *, wait: bool = True, on_change: OnChange | None = None) -> Routine[OperationView]:
        """Keep it as it is now, also while it is in use."""
        return self._done(disk_endpoints.snapshot(name), wait, on_change)

    @offered
    def restore(
        self,
        name: str,
        *,
        snapshot_id: str | None = None,
        new_name: str | None = None,
        disk_id: str | None = None,
        wait: bool = True,
        on_change: OnChange | None = None,
    ) -> Routine[OperationView]:
        """Bring a deleted one back, or take one back to a snapshot."""
        ask = RestoreDiskRequest(snapshot_id=snapshot_id, new_name=new_name, disk_id=disk_id)
        return self._done(disk_endpoints.restore(name, ask), wait, on_change)

    @offered
    def rename(
        self, name: str, new_name: str, *, wait: bool = True, on_change: OnChange | None = None
    ) -> Routine[OperationView]:
        """Give it another name."""
        return self._done(disk_endpoints.rename(name, RenameDiskRequest(new_name=new_name)), wait, on_change)

    @offered
    def resize(
        self, name: str, size_gb: int, *, wait: bool = True, on_change: OnChange | None = None
    ) -> Routine[OperationView]:
        """Make it larger, also while it is in use."""
        return self._done(disk_endpoints.resize(name, ResizeDiskRequest(size_gb=size_gb)), wait, on_change)

    @offered
    def clone(
        self,
        name: str,
        new_name: str,
        *,
        size_gb: int | None = None,
        snapshot_id: str | None = None,
        wait: bool = True,
        on_change: OnChange | None = None,
    ) -> Routine[OperationView]:
        """A second disk with the same files, or with those of a snapshot."""
        ask = CloneDiskRequest(new_name=new_name, size_gb=size_gb, snapshot_id=snapshot_id)
        return self._done(disk_endpoints.clone(name, ask), wait, on_change)

    @offered
    def list(self, *, deleted: bool = False) -> Routine[Sequence[DiskView]]:
        """Your disks; `deleted`: those that can be restored, too."""
        return (yield from self._core.value(disk_endpoints.list_disks(deleted=deleted))).disks

    def _done(self, call: Call[OperationView], wait: bool, on_change: OnChange | None) -> Routine[OperationView]:
        reply = yield from self._core.ask(call)
        if not wait:
            return reply.value
        patient_for = patience(self._session.env)
        over = yield from wait_until_over(self._core, reply, patience=patient_for, on_change=on_change)
        return check_done(over.value)


class Disks(DiskMethods, Blocking):
    pass


class AsyncDisks(DiskMethods, Awaiting):
    pass
