"""Actions on Compute disks and snapshots. Each may be repeated.

Resources are named after their token, and names are unique (a disk's in its zone). A repeated call therefore finds the
resource, even when a tool has changed its labels or copied them to another one.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID, uuid4

from gpudev.adapters.gcp.client import (
    DISK_LISTING,
    GcpAlreadyExists,
    GcpClient,
    GcpConditionNotMet,
    GcpNotFound,
    error_from_operation,
    list_resources,
)
from gpudev.adapters.gcp.labels import labels_from_tags, update_labels
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.resources import (
    DiskPath,
    SnapshotPath,
    find_disk_path,
    get_disk_path,
    get_snapshot_path,
    last_segment,
)
from gpudev.domain.backoff import growing_pauses
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import TOKEN_TAG

_T = TypeVar("_T")
_OPERATION_KIND = "compute#operation"
_CREATING_STATUSES = ("CREATING", "RESTORING")


def resource_name(token: str) -> str:
    return f"gpu-dev-{UUID(token)}"


class GcpDisks:
    def __init__(self, client: GcpClient) -> None:
        self._client = client

    async def find_disk(self, path: DiskPath) -> Any | None:
        try:
            return await self.get_disk(path)
        except GcpNotFound:
            return None

    async def get_disk(self, path: DiskPath) -> Any:
        request = self._new_message("GetDiskRequest", project=path.project, zone=path.zone, disk=path.name)
        return await self._client.call(
            Permission.GET_DISK, self._client.service_client("Disks").get, request, "compute#disk"
        )

    async def ensure_disk(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None
    ) -> Any:
        path = await self._find_disk_by_name(resource_name(token))
        if path is None:
            path = DiskPath(self._client.project, "zones", zone, resource_name(token))
            await self._create_disk(path, token, size_gb, tags, from_snapshot)
        return await self._await_disk(path)

    async def _find_disk_by_name(self, name: str) -> DiskPath | None:
        """In all zones, so that a repeated call with another zone creates no second disk."""

        def read_path(disk: Any) -> DiskPath | None:
            return get_disk_path(disk) if disk.name == name else None

        found = await list_resources(self._client, DISK_LISTING, read_path, filter_text=f'name = "{name}"')
        return found[0] if found else None

    async def _create_disk(
        self, path: DiskPath, token: str, size_gb: int, tags: Mapping[str, str], from_snapshot: str | None
    ) -> None:
        disk = self._new_message(
            "Disk",
            name=path.name,
            size_gb=size_gb,
            type_=f"projects/{path.project}/zones/{path.zone}/diskTypes/{self._client.settings.disk_type}",
            labels=labels_from_tags({**tags, TOKEN_TAG: token}),
        )
        if from_snapshot is not None:
            disk.source_snapshot = str(get_snapshot_path(from_snapshot))
        request = self._new_message("InsertDiskRequest", project=path.project, zone=path.zone, disk_resource=disk)
        with contextlib.suppress(GcpAlreadyExists):  # another process created it; the caller waits for it
            operation = await begin_operation(self._client, Permission.CREATE_DISK, "Disks", "insert_unary", request)
            await await_operation(self._client, operation, Permission.CREATE_DISK)

    async def _await_disk(self, path: DiskPath) -> Any:
        """It was created, so it will appear; "not found" does not mean that it is gone."""

        async def find_ready() -> Any | None:
            disk = await self.find_disk(path)
            return None if disk is None or disk.status in _CREATING_STATUSES else disk

        disk = await poll_until(self._client, find_ready, f"the disk {path.name} is not ready")
        if disk.status == "FAILED":  # its creation failed: it has no files, and nothing would ever search for it
            await self.remove_disk(path)
            raise ClusterError(f"GCP could not create the disk {path.name}")
        return disk

    async def grow_disk(self, path: DiskPath, size_gb: int) -> Any:
        disk = await self.get_disk(path)
        if disk.size_gb >= size_gb:
            return disk
        request = self._new_message(
            "ResizeDiskRequest",
            project=path.project,
            zone=path.zone,
            disk=path.name,
            disks_resize_request_resource=self._new_message("DisksResizeRequest", size_gb=size_gb),
        )
        permission = Permission.RESIZE_DISK
        operation = await begin_operation(self._client, permission, "Disks", "resize_unary", request)
        await await_operation(self._client, operation, permission)
        return await self.get_disk(path)

    async def tag_disk(self, path: DiskPath, tags: Mapping[str, str]) -> None:
        for attempt in range(1, self._client.pace.attempts + 1):
            disk = await self.get_disk(path)
            labels = update_labels(disk.labels, tags)
            if labels == dict(disk.labels):
                return
            try:
                await self._set_labels(path, labels, disk.label_fingerprint)
            except GcpConditionNotMet:  # a concurrent change, which must be kept
                await asyncio.sleep(self._client.retry_delay(attempt))
            else:
                return
        raise Unavailable(f"the labels of {path.name} keep changing; try again later")

    async def _set_labels(self, path: DiskPath, labels: Mapping[str, str], fingerprint: str) -> None:
        request = self._new_message(
            "SetLabelsDiskRequest",
            project=path.project,
            zone=path.zone,
            resource=path.name,
            zone_set_labels_request_resource=self._new_message(
                "ZoneSetLabelsRequest", labels=labels, label_fingerprint=fingerprint
            ),
        )
        permission = Permission.LABEL_DISK
        operation = await begin_operation(self._client, permission, "Disks", "set_labels_unary", request)
        await await_operation(self._client, operation, permission)

    async def remove_disk(self, path: DiskPath) -> None:
        request = self._new_message("DeleteDiskRequest", project=path.project, zone=path.zone, disk=path.name)
        await self._delete_resource(Permission.DELETE_DISK, "Disks", request)

    async def find_snapshot(self, path: SnapshotPath) -> Any | None:
        request = self._new_message("GetSnapshotRequest", project=path.project, snapshot=path.name)
        send = self._client.service_client("Snapshots").get
        try:
            return await self._client.call(Permission.GET_SNAPSHOT, send, request, "compute#snapshot")
        except GcpNotFound:
            return None

    async def ensure_snapshot(self, token: str, source: DiskPath, tags: Mapping[str, str]) -> Any:
        """Returns as soon as it exists; it may take minutes until it is complete."""
        path = SnapshotPath(source.project, resource_name(token))
        snapshot = await self.find_snapshot(path)
        if snapshot is None:
            snapshot = await self._create_snapshot(path, token, source, tags)
        if find_disk_path(snapshot.source_disk) != source:
            raise ClusterError(f"the snapshot {path.name} is of another disk: {snapshot.source_disk}")
        return snapshot

    async def _create_snapshot(self, path: SnapshotPath, token: str, source: DiskPath, tags: Mapping[str, str]) -> Any:
        request = self._new_message(
            "CreateSnapshotDiskRequest",
            project=source.project,
            zone=source.zone,
            disk=source.name,
            snapshot_resource=self._new_message(
                "Snapshot", name=path.name, labels=labels_from_tags({**tags, TOKEN_TAG: token})
            ),
        )
        operation = None
        with contextlib.suppress(GcpAlreadyExists):  # another process created it
            operation = await begin_operation(
                self._client, Permission.SNAPSHOT_DISK, "Disks", "create_snapshot_unary", request
            )

        async def find_created() -> Any | None:
            snapshot = await self.find_snapshot(path)
            if snapshot is None and operation is not None:
                await check_not_failed(self._client, operation, Permission.SNAPSHOT_DISK)
            return snapshot

        return await poll_until(self._client, find_created, f"the snapshot {path.name} does not exist yet")

    async def remove_snapshot(self, path: SnapshotPath) -> None:
        request = self._new_message("DeleteSnapshotRequest", project=path.project, snapshot=path.name)
        await self._delete_resource(Permission.DELETE_SNAPSHOT, "Snapshots", request)

    async def _delete_resource(self, permission: Permission, client: str, request: Any) -> None:
        with contextlib.suppress(GcpNotFound):  # it is gone already
            operation = await begin_operation(self._client, permission, client, "delete_unary", request)
            await await_operation(self._client, operation, permission)

    def _new_message(self, kind: str, /, **fields: Any) -> Any:
        return getattr(self._client.messages, kind)(**fields)


# Operations of the Compute API. A change continues after the response to its request.


async def begin_operation(gcp: GcpClient, permission: Permission, client: str, method: str, request: Any) -> Any:
    """All attempts of one call have one request id, so GCP executes it once. Another call has another id, because for a
    known id GCP returns the old result, also a failure. Between calls, unique names prevent a second creation."""
    request.request_id = str(uuid4())
    return await gcp.call(permission, getattr(gcp.service_client(client), method), request, _OPERATION_KIND)


async def await_operation(gcp: GcpClient, operation: Any, permission: Permission) -> None:
    """Wait until it is done. Raises its error."""

    async def is_done() -> bool | None:
        nonlocal operation
        if operation.status != gcp.messages.Operation.Status.DONE:
            operation = await get_operation(gcp, operation)
        return True if operation.status == gcp.messages.Operation.Status.DONE else None

    await poll_until(gcp, is_done, f"{permission} is not finished")
    failure = error_from_operation(operation, permission)
    if failure is not None:
        raise failure


async def check_not_failed(gcp: GcpClient, operation: Any, permission: Permission) -> None:
    """Raises the error of a failed operation; it may still be running."""
    operation = await get_operation(gcp, operation)
    failure = error_from_operation(operation, permission)
    if failure is not None:
        raise failure


async def get_operation(gcp: GcpClient, operation: Any) -> Any:
    if operation.zone:
        request = gcp.messages.GetZoneOperationRequest(
            project=gcp.project, zone=last_segment(operation.zone), operation=operation.name
        )
        permission, client = Permission.GET_ZONE_OPERATION, "ZoneOperations"
    else:
        request = gcp.messages.GetGlobalOperationRequest(project=gcp.project, operation=operation.name)
        permission, client = Permission.GET_GLOBAL_OPERATION, "GlobalOperations"
    try:
        return await gcp.call(permission, gcp.service_client(client).get, request, _OPERATION_KIND)
    except GcpNotFound as error:
        raise Unavailable(f"GCP operation {operation.name} not found; its result is unknown") from error


async def poll_until(gcp: GcpClient, poll: Callable[[], Awaitable[_T | None]], problem: str) -> _T:
    """Poll at growing intervals until the result is not None. `problem`: the error's text after a timeout."""
    pauses = growing_pauses(gcp.pace.poll_every, gcp.pace.slowest_poll, factor=1.5)
    patience = gcp.pace.operation_patience
    try:
        async with asyncio.timeout(patience.total_seconds()):
            while (result := await poll()) is None:
                pause = next(pauses)
                await asyncio.sleep(pause.total_seconds())
            return result
    except TimeoutError as error:
        raise Unavailable(f"GCP: {problem} after {patience}; try again later") from error
