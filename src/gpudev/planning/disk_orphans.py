"""Which volumes and snapshots nobody uses, and what they cost: told, never removed."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.planning.disks.reconcile_disks import plan_disk_writes
from gpudev.ports.cloud import OWNER_TAG, Snapshot, Volume
from gpudev.ports.reconciling import DiskRecord, ImportDisk
from gpudev.settings import ReconcileSettings


@dataclass(frozen=True, slots=True)
class OrphanedStorage:
    kind: str
    """volume or snapshot"""
    id: str
    username: str | None
    disk_name: str | None
    reason: str
    size_gb: int
    age: timedelta
    monthly_cost: float
    """Of a snapshot at most: the cloud charges what changed, and tells the whole size only."""


def find_orphaned_storage(
    volumes: Sequence[Volume],
    snapshots: Sequence[Snapshot],
    records: Sequence[DiskRecord],
    prices: ReconcileSettings,
    now: datetime,
    *,
    ours: AbstractSet[str] = frozenset(),
) -> list[OrphanedStorage]:
    """The dearest first. `ours`: what we made and take care of ourselves: snapshots of disks that have moved to another
    volume since, and the volumes they have left."""
    reasons = _orphan_reasons(volumes, snapshots, records)
    found = [
        OrphanedStorage(
            "volume",
            volume.volume_id,
            volume.owner,
            volume.disk_name,
            reasons[volume.volume_id],
            volume.size_gb,
            now - volume.created_at,
            volume.size_gb * prices.volume_gb_month,
        )
        for volume in volumes
        if volume.volume_id in reasons and not volume.attached_to and volume.volume_id not in ours
    ]
    there = {volume.volume_id for volume in volumes}
    known = there.union(record.volume_id for record in records if record.volume_id and not record.is_deleted)
    found += [
        OrphanedStorage(
            "snapshot",
            snapshot.snapshot_id,
            snapshot.tags.get(OWNER_TAG),
            None,
            f"its volume {snapshot.volume_id} is gone, and no living disk was on it",
            snapshot.size_gb,
            now - snapshot.created_at,
            snapshot.size_gb * prices.snapshot_gb_month,
        )
        for snapshot in snapshots
        if snapshot.volume_id not in known and snapshot.snapshot_id not in ours
    ]
    return sorted(found, key=lambda one: (-one.monthly_cost, one.id))


def _orphan_reasons(
    volumes: Sequence[Volume], snapshots: Sequence[Snapshot], records: Sequence[DiskRecord]
) -> dict[str, str]:
    plan = plan_disk_writes(volumes, snapshots, records)
    reasons = {skipped.volume_id: skipped.reason for skipped in plan.skipped}
    reasons |= {
        write.fields["ebs_volume_id"]: "no disk is recorded for it (the next pass imports it)"
        for write in plan.writes
        if isinstance(write, ImportDisk)
    }
    for record in records:
        if record.volume_id is not None and record.is_deleted:
            reasons[record.volume_id] = "its disk is deleted"
        elif record.volume_id is not None and not record.user_is_active:
            reasons[record.volume_id] = f"its owner {record.username} is not active"
    for duplicate in plan.duplicates:
        beside = f"beside {duplicate.linked}" if duplicate.linked else "and the recorded volume is gone"
        name = f"{duplicate.username}'s disk {duplicate.disk_name!r}"
        reasons |= dict.fromkeys(duplicate.others, f"a further volume called {name}, {beside}")
    return reasons
