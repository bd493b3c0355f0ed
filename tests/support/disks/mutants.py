"""Decisions about disks that look reasonable and break a promise."""

import pytest

from gpudev.domain.disks.operations import DiskState, SnapshotReason, SnapshotRecord
from gpudev.planning.disks.operation_results import OperationStep
from gpudev.planning.disks.operation_steps import OperationContext

Patch = pytest.MonkeyPatch


def any_snapshot_will_do(patch: Patch) -> None:
    """Before a volume is given up, there is some good snapshot of the disk; it need not be of what is on it now."""

    def save(self: OperationContext, disk: DiskState, why: SnapshotReason) -> OperationStep | SnapshotRecord:
        old = [one for one in self.facts.snapshots if one.disk_id == disk.disk_id and one.status.is_usable]
        return old[0] if old else self.own_snapshot(disk, why)

    patch.setattr(OperationContext, "save", save)


def attached_is_no_matter(patch: Patch) -> None:
    patch.setattr(OperationContext, "until_detached", lambda self, volume: None)


def old_volumes_are_left(patch: Patch) -> None:
    patch.setattr(OperationContext, "removal_of_replaced", lambda self: None)
