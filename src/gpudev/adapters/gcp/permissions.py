"""Every permission of GCP that is ever needed, and which of them each part may use.

`calling` takes nothing but a `Permission`, so what is not here cannot be asked for. The sets are what an administrator
grants, in a role of its own: a test fails when a part needs more than its set, or less.
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
    """Also asked of whoever makes a disk that has labels from the start."""
    DELETE_DISK = "compute.disks.delete"
    SNAPSHOT_DISK = "compute.disks.createSnapshot"
    CREATE_SNAPSHOT = "compute.snapshots.create"
    """With the one before: never asked for by itself."""
    LABEL_SNAPSHOT = "compute.snapshots.setLabels"
    """With the same."""
    READ_SNAPSHOT = "compute.snapshots.useReadOnly"
    """When a disk is made from one."""
    GET_SNAPSHOT = "compute.snapshots.get"
    DELETE_SNAPSHOT = "compute.snapshots.delete"
    GET_ZONE_OPERATION = "compute.zoneOperations.get"
    GET_GLOBAL_OPERATION = "compute.globalOperations.get"


RECONCILE_AVAILABILITY = frozenset({Permission.LIST_GROUPS})
"""`gpu-dev-server reconcile availability`."""

RECONCILE_DISKS = frozenset({Permission.LIST_DISKS, Permission.LIST_SNAPSHOTS})
"""`gpu-dev-server reconcile disks` and `report orphans`."""

DISK_OPERATIONS = frozenset(Permission) - {Permission.LIST_GROUPS, Permission.LIST_SNAPSHOTS}
"""Making, growing, labelling, copying and removing disks: the processor alone."""
