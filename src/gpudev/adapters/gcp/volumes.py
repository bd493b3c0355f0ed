"""What is done to Compute disks and snapshots, one by one. Every call may be repeated.

What we make is named after its token, and names are unique (a disk's in its zone): whoever asks again finds it, even
when labels were changed or copied to something else by some tool.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gpudev.adapters.gcp import compute_operations
from gpudev.adapters.gcp.client import Caller
from gpudev.adapters.gcp.errors import AlreadyThere, Missing, Outdated
from gpudev.adapters.gcp.labels import labels_of, with_tags
from gpudev.adapters.gcp.listing import DISKS, listed
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.resources import DiskPath, SnapshotPath, disk_path_of, find_disk_path, snapshot_path
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import TOKEN_TAG

_BEING_MADE = ("CREATING", "RESTORING")


def name_of(token: str) -> str:
    return f"gpu-dev-{UUID(token)}"


class Disks:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def find(self, path: DiskPath) -> Any | None:
        try:
            return await self.get(path)
        except Missing:
            return None

    async def get(self, path: DiskPath) -> Any:
        request = self._message("GetDiskRequest", project=path.project, zone=path.zone, disk=path.name)
        return await self._caller.call(Permission.GET_DISK, self._caller.client("Disks").get, request, "compute#disk")

    async def ensure(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None
    ) -> Any:
        path = await self._find_named(name_of(token))
        if path is None:
            path = DiskPath(self._caller.project, "zones", zone, name_of(token))
            await self._create(path, token, size_gb, tags, from_snapshot)
        return await self._until_made(path)

    async def _find_named(self, name: str) -> DiskPath | None:
        """In whatever zone: asking again with another one makes no second disk."""

        def named_so(disk: Any) -> DiskPath | None:
            return disk_path_of(disk) if disk.name == name else None

        found = await listed(self._caller, DISKS, named_so, asking=f'name = "{name}"')
        return found[0] if found else None

    async def _create(
        self, path: DiskPath, token: str, size_gb: int, tags: Mapping[str, str], from_snapshot: str | None
    ) -> None:
        disk = self._message(
            "Disk",
            name=path.name,
            size_gb=size_gb,
            type_=f"projects/{path.project}/zones/{path.zone}/diskTypes/{self._caller.settings.disk_type}",
            labels=labels_of({**tags, TOKEN_TAG: token}),
        )
        if from_snapshot is not None:
            disk.source_snapshot = str(snapshot_path(from_snapshot))
        request = self._message("InsertDiskRequest", project=path.project, zone=path.zone, disk_resource=disk)
        with contextlib.suppress(AlreadyThere):  # somebody else asked for the same; it is waited for
            operation = await compute_operations.begin(
                self._caller, Permission.CREATE_DISK, "Disks", "insert_unary", request
            )
            await compute_operations.finish(self._caller, operation, Permission.CREATE_DISK)

    async def _until_made(self, path: DiskPath) -> Any:
        """It was made, so it will be seen; one that does not exist yet is not taken for gone."""

        async def made() -> Any | None:
            disk = await self.find(path)
            return None if disk is None or disk.status in _BEING_MADE else disk

        disk = await compute_operations.poll(self._caller, made, f"the disk {path.name} is not ready")
        if disk.status == "FAILED":  # its creation: nothing was ever on it, and nobody would look for it again
            await self.remove(path)
            raise ClusterError(f"GCP could not make the disk {path.name}.")
        return disk

    async def grow(self, path: DiskPath, size_gb: int) -> Any:
        disk = await self.get(path)
        if disk.size_gb >= size_gb:
            return disk
        request = self._message(
            "ResizeDiskRequest",
            project=path.project,
            zone=path.zone,
            disk=path.name,
            disks_resize_request_resource=self._message("DisksResizeRequest", size_gb=size_gb),
        )
        permission = Permission.RESIZE_DISK
        operation = await compute_operations.begin(self._caller, permission, "Disks", "resize_unary", request)
        await compute_operations.finish(self._caller, operation, permission)
        return await self.get(path)

    async def tag(self, path: DiskPath, tags: Mapping[str, str]) -> None:
        for attempt in range(1, self._caller.settings.attempts + 1):
            disk = await self.get(path)
            labels = with_tags(disk.labels, tags)
            if labels == dict(disk.labels):
                return
            try:
                await self._set_labels(path, labels, disk.label_fingerprint)
            except Outdated:  # somebody else changed them meanwhile: theirs must stay
                await asyncio.sleep(self._caller.sleeping(attempt))
            else:
                return
        raise Unavailable(f"The labels of {path.name} are being changed by others all the time.")

    async def _set_labels(self, path: DiskPath, labels: Mapping[str, str], fingerprint: str) -> None:
        request = self._message(
            "SetLabelsDiskRequest",
            project=path.project,
            zone=path.zone,
            resource=path.name,
            zone_set_labels_request_resource=self._message(
                "ZoneSetLabelsRequest", labels=labels, label_fingerprint=fingerprint
            ),
        )
        permission = Permission.LABEL_DISK
        operation = await compute_operations.begin(self._caller, permission, "Disks", "set_labels_unary", request)
        await compute_operations.finish(self._caller, operation, permission)

    async def remove(self, path: DiskPath) -> None:
        request = self._message("DeleteDiskRequest", project=path.project, zone=path.zone, disk=path.name)
        await self._remove(Permission.DELETE_DISK, "Disks", request)

    async def find_snapshot(self, path: SnapshotPath) -> Any | None:
        request = self._message("GetSnapshotRequest", project=path.project, snapshot=path.name)
        send = self._caller.client("Snapshots").get
        try:
            return await self._caller.call(Permission.GET_SNAPSHOT, send, request, "compute#snapshot")
        except Missing:
            return None

    async def ensure_snapshot(self, token: str, source: DiskPath, tags: Mapping[str, str]) -> Any:
        """Returns as soon as it can be seen; it may take minutes until it is complete."""
        path = SnapshotPath(source.project, name_of(token))
        snapshot = await self.find_snapshot(path)
        if snapshot is None:
            snapshot = await self._begin_snapshot(path, token, source, tags)
        if find_disk_path(snapshot.source_disk) != source:
            raise ClusterError(f"The snapshot {path.name} is of another disk: {snapshot.source_disk}.")
        return snapshot

    async def _begin_snapshot(self, path: SnapshotPath, token: str, source: DiskPath, tags: Mapping[str, str]) -> Any:
        request = self._message(
            "CreateSnapshotDiskRequest",
            project=source.project,
            zone=source.zone,
            disk=source.name,
            snapshot_resource=self._message("Snapshot", name=path.name, labels=labels_of({**tags, TOKEN_TAG: token})),
        )
        operation = None
        with contextlib.suppress(AlreadyThere):  # somebody else asked for the same
            operation = await compute_operations.begin(
                self._caller, Permission.SNAPSHOT_DISK, "Disks", "create_snapshot_unary", request
            )

        async def begun() -> Any | None:
            snapshot = await self.find_snapshot(path)
            if snapshot is None and operation is not None:
                await compute_operations.refuse_failed(self._caller, operation, Permission.SNAPSHOT_DISK)
            return snapshot

        return await compute_operations.poll(self._caller, begun, f"the snapshot {path.name} cannot be seen")

    async def remove_snapshot(self, path: SnapshotPath) -> None:
        request = self._message("DeleteSnapshotRequest", project=path.project, snapshot=path.name)
        await self._remove(Permission.DELETE_SNAPSHOT, "Snapshots", request)

    async def _remove(self, permission: Permission, client: str, request: Any) -> None:
        with contextlib.suppress(Missing):  # gone, which is what was asked for
            operation = await compute_operations.begin(self._caller, permission, client, "delete_unary", request)
            await compute_operations.finish(self._caller, operation, permission)

    def _message(self, kind: str, /, **fields: Any) -> Any:
        return getattr(self._caller.messages, kind)(**fields)
