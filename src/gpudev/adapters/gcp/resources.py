"""GCP resources: paths of disks and snapshots, and resources as values of the port.

A volume's id is the disk's path (`projects/P/zones/Z/disks/N`), which is also its handle for the CSI driver. A
snapshot's id is `projects/P/global/snapshots/N`. This module reads fields of Google's messages and knows no client. A
resource that does not look like GCP's raises Unavailable.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpudev.adapters.gcp.labels import tags_from_labels
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import NodeGroup, Snapshot, SnapshotState, Volume

_DISK_LINK = re.compile(r"(?:^|/)projects/([^/]+)/(zones|regions)/([^/]+)/disks/([^/]+)$")
_SNAPSHOT_LINK = re.compile(r"(?:^|/)projects/([^/]+)/global/snapshots/([^/]+)$")

_SNAPSHOT_STATES = {
    "CREATING": SnapshotState.PENDING,
    "UPLOADING": SnapshotState.PENDING,
    "READY": SnapshotState.COMPLETED,
    "FAILED": SnapshotState.ERROR,
    # It can no longer be restored.
    "DELETING": SnapshotState.ERROR,
}
_BUSY_REASONS = {
    "DELETING": "GCP is deleting the disk",
    "FAILED": "the disk has failed in GCP",
    "UNAVAILABLE": "GCP reports that the disk is unavailable",
}


@dataclass(frozen=True, slots=True)
class DiskPath:
    project: str
    scope: str
    """`zones` or `regions`."""
    location: str
    name: str

    def __str__(self) -> str:
        return f"projects/{self.project}/{self.scope}/{self.location}/disks/{self.name}"

    @property
    def zone(self) -> str | None:
        """None: a regional disk, with a copy in each of two zones."""
        return self.location if self.scope == "zones" else None


@dataclass(frozen=True, slots=True)
class SnapshotPath:
    project: str
    name: str

    def __str__(self) -> str:
        return f"projects/{self.project}/global/snapshots/{self.name}"


def find_disk_path(link: str) -> DiskPath | None:
    found = _DISK_LINK.search(link)
    return DiskPath(*found.groups()) if found else None


def get_zonal_disk_path(volume_id: str) -> DiskPath:
    """For actions on one disk. Regional disks are listed, but never changed."""
    path = find_disk_path(volume_id)
    if path is None:
        raise ClusterError(f"invalid GCP disk {volume_id!r} (expected projects/PROJECT/zones/ZONE/disks/NAME)")
    if path.zone is None:
        raise ClusterError(f"{volume_id!r} is a regional disk; only zonal disks are managed")
    return path


def get_snapshot_path(snapshot_id: str) -> SnapshotPath:
    found = _SNAPSHOT_LINK.search(snapshot_id)
    if found is None:
        raise ClusterError(f"invalid GCP snapshot {snapshot_id!r} (expected projects/PROJECT/global/snapshots/NAME)")
    return SnapshotPath(*found.groups())


def get_disk_path(disk: Any) -> DiskPath:
    path = find_disk_path(disk.self_link)
    if path is None:
        raise Unavailable(f"invalid GCP response: disk with self_link {disk.self_link[:200]!r}")
    return path


def volume_from_disk(disk: Any) -> Volume:
    path = get_disk_path(disk)
    return Volume(
        volume_id=str(path),
        size_gb=disk.size_gb,
        created_at=_parse_time(disk.creation_timestamp),
        zone=path.zone,
        attached_to=tuple(sorted(last_segment(user) for user in disk.users)),
        tags=tags_from_labels(disk.labels),
        busy_reason=_BUSY_REASONS.get(disk.status),
    )


def snapshot_from_resource(snapshot: Any) -> Snapshot:
    found, source = _SNAPSHOT_LINK.search(snapshot.self_link), find_disk_path(snapshot.source_disk)
    if found is None:
        raise Unavailable(f"invalid GCP response: snapshot with self_link {snapshot.self_link[:200]!r}")
    if snapshot.status not in _SNAPSHOT_STATES:
        raise Unavailable(f"invalid GCP response: unknown snapshot state {snapshot.status[:80]!r}")
    return Snapshot(
        snapshot_id=str(SnapshotPath(*found.groups())),
        volume_id=str(source) if source else snapshot.source_disk,
        state=_SNAPSHOT_STATES[snapshot.status],
        created_at=_parse_time(snapshot.creation_timestamp),
        size_gb=snapshot.disk_size_gb,
        tags=tags_from_labels(snapshot.labels),
    )


def node_group_from_resource(group: Any) -> NodeGroup:
    """`current_actions.none` counts the instances that run without a pending action: those in service."""
    return NodeGroup(name=group.name, desired=group.target_size, in_service=group.current_actions.none)


def last_segment(link: str) -> str:
    return link.rpartition("/")[2]


def is_in_region(scope: str, region: str) -> bool:
    """`scope`: a path that contains zones/ZONE or regions/REGION. Empty `region`: always true."""
    found = re.search(r"(zones|regions)/([^/]+)", scope)
    if not region or found is None:
        return True
    location = found.group(2)
    return location == region if found.group(1) == "regions" else location.rpartition("-")[0] == region


def _parse_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Unavailable(f"invalid GCP response: time {text[:80]!r}") from error
    if time.tzinfo is None:
        raise Unavailable(f"invalid GCP response: time {text[:80]!r} without its zone")
    return time.astimezone(UTC)
