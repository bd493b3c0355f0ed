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
    """One disk's snapshots that no rule keeps, oldest first. Only those that gpu-dev took."""
    snapshots = [each for each in snapshots if each.why is not SnapshotReason.IMPORTED]
    completed = sorted(
        (each for each in snapshots if each.status is SnapshotStatus.COMPLETED), key=lambda each: each.created_at
    )
    automatic = [each for each in completed if each.why is not SnapshotReason.ASKED]
    whole = [each for each in completed if each.lacks is None]
    kept = {each.snapshot_id for each in (*completed[-1:], *whole[-1:])}
    kept |= {each.snapshot_id for each in automatic[max(0, len(automatic) - settings.keep_last) :]}
    kept |= {each.snapshot_id for each in _last_of_each_day(automatic, now, settings.keep_daily_days)}
    kept |= {
        each.snapshot_id
        for each in completed
        if each.why is SnapshotReason.ASKED and each.created_at > now - settings.keep_asked
    }
    old = [each for each in completed if each.snapshot_id not in kept]
    # A failed snapshot holds nothing, but the cloud may still store and bill it.
    failed = [each for each in snapshots if each.status is SnapshotStatus.FAILED and each.cloud_id is not None]
    return [each for each in (*failed, *old) if each.snapshot_id not in protected]


def needed_snapshots(facts: UserDisks) -> set[RecordedSnapshotId]:
    """Snapshots that a disk, a retired volume or a running operation needs."""
    needed = {disk.saved_as for disk in facts.disks.values()}
    needed |= {volume.saved_in for volume in facts.volumes if volume.status is VolumeStatus.RETIRED}
    needed |= {volume.from_snapshot for volume in facts.volumes if volume.status is VolumeStatus.MAKING}
    needed |= {operation.snapshot_id for operation in facts.unfinished}
    under_way = {operation.operation_id for operation in facts.unfinished}
    needed |= {each.snapshot_id for each in facts.snapshots if each.operation_id in under_way}
    return {each for each in needed if each is not None}


def _last_of_each_day(snapshots: Iterable[SnapshotRecord], now: datetime, days: int) -> Iterable[SnapshotRecord]:
    """The last one of each day."""
    by_day: dict[date, SnapshotRecord] = {}
    for each in snapshots:
        if each.created_at > now - timedelta(days=days):
            by_day[each.created_at.date()] = each
    return by_day.values()
