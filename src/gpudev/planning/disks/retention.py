"""Retention: which snapshots may be pruned. Only recorded snapshots count.

The newest complete snapshot of a disk is always kept, and so is everything that something else depends on.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import date, datetime, timedelta

from gpudev.domain.disks.operations import (
    DiskSettings,
    RecordedSnapshotId,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    UserDisks,
    VolumeStatus,
)


def prunable(
    snapshots: Sequence[SnapshotRecord],
    protected: Collection[RecordedSnapshotId],
    now: datetime,
    settings: DiskSettings,
) -> list[SnapshotRecord]:
    """Of one disk's snapshots those that no rule keeps, the oldest first."""
    completed = sorted(
        (one for one in snapshots if one.status is SnapshotStatus.COMPLETED), key=lambda one: one.created_at
    )
    automatic = [one for one in completed if one.why is not SnapshotReason.ASKED]
    whole = [one for one in completed if one.lacks is None]
    kept = {one.snapshot_id for one in (*completed[-1:], *whole[-1:])}
    kept |= {one.snapshot_id for one in automatic[max(0, len(automatic) - settings.keep_last) :]}
    kept |= {one.snapshot_id for one in _last_of_each_day(automatic, now, settings.keep_daily_days)}
    kept |= {
        one.snapshot_id
        for one in completed
        if one.why is SnapshotReason.ASKED and one.created_at > now - settings.keep_asked
    }
    old = [one for one in completed if one.snapshot_id not in kept]
    # What failed holds nothing, but the cloud may still keep and bill something by that id.
    failed = [one for one in snapshots if one.status is SnapshotStatus.FAILED and one.cloud_id is not None]
    return [one for one in (*failed, *old) if one.snapshot_id not in protected]


def needed_snapshots(facts: UserDisks) -> set[RecordedSnapshotId]:
    """Snapshots that a disk, a volume on its way out or an operation under way needs."""
    needed = {disk.saved_as for disk in facts.disks.values()}
    needed |= {volume.saved_in for volume in facts.volumes if volume.status is VolumeStatus.RETIRED}
    needed |= {volume.from_snapshot for volume in facts.volumes if volume.status is VolumeStatus.MAKING}
    needed |= {operation.snapshot_id for operation in facts.unfinished}
    under_way = {operation.operation_id for operation in facts.unfinished}
    needed |= {one.snapshot_id for one in facts.snapshots if one.operation_id in under_way}
    return {one for one in needed if one is not None}


def _last_of_each_day(snapshots: Iterable[SnapshotRecord], now: datetime, days: int) -> Iterable[SnapshotRecord]:
    """The last one of each day."""
    by_day: dict[date, SnapshotRecord] = {}
    for one in snapshots:
        if one.created_at > now - timedelta(days=days):
            by_day[one.created_at.date()] = one
    return by_day.values()
