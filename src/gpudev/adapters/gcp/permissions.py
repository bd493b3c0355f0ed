"""GCP permissions that we need, and which of them each part of the system needs.

`GcpClient.call` accepts only a `Permission`, so nothing else can be called. Administrators grant the sets, each as a
custom role; a test fails when a part needs more than its set, or less.
"""

from enum import StrEnum


class Permission(StrEnum):
    LIST_GROUPS = "compute.instanceGroupManagers.list"
    LIST_DISKS = "compute.disks.list"
    LIST_SNAPSHOTS = "compute.snapshots.list"
    GET_DISK = "compute.disks.get"
    CREATE_DISK = "compute.disks.create"
    RESIZE_DISK = "compute.disks.resize"
    LABEL_DISK = "compute.disks.setLabels"
    """Also needed to create a disk with labels."""
    DELETE_DISK = "compute.disks.delete"
    SNAPSHOT_DISK = "compute.disks.createSnapshot"
    CREATE_SNAPSHOT = "compute.snapshots.create"
    """Needed with SNAPSHOT_DISK, never alone."""
    LABEL_SNAPSHOT = "compute.snapshots.setLabels"
    """Needed with SNAPSHOT_DISK, never alone."""
    READ_SNAPSHOT = "compute.snapshots.useReadOnly"
    """Needed to create a disk from a snapshot."""
    GET_SNAPSHOT = "compute.snapshots.get"
    DELETE_SNAPSHOT = "compute.snapshots.delete"
    GET_ZONE_OPERATION = "compute.zoneOperations.get"
    GET_GLOBAL_OPERATION = "compute.globalOperations.get"


RECONCILE_AVAILABILITY = frozenset({Permission.LIST_GROUPS})
"""`gpu-dev-server reconcile availability`."""

RECONCILE_DISKS = frozenset({Permission.LIST_DISKS, Permission.LIST_SNAPSHOTS})
"""`gpu-dev-server reconcile disks` and `report orphans`."""

DISK_OPERATIONS = frozenset(Permission) - {Permission.LIST_GROUPS, Permission.LIST_SNAPSHOTS}
"""Creation, growth, labels, copies and removal of disks: only for the processor."""
