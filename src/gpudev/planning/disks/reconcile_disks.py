"""Disk reconciliation: corrects the records of disks from the cloud's volumes.

The cloud is authoritative for existence, size, attachment and the number of snapshots; the records for owner, deletion
and operations. Nothing is removed here, and a record's volume is never replaced by another: that would put a user's
files under another name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gpudev.domain.access.users import check_username
from gpudev.domain.disks.names import is_disk_name, map_disk_name, map_to_distinct_disk_name
from gpudev.domain.errors import Invalid
from gpudev.ports.cloud import DISK_ID_TAG, DISK_NAME_TAGS, OWNER_TAG, RECORDED_TAG, Snapshot, SnapshotState, Volume
from gpudev.ports.disks import DiskRecord, DiskWrite, ImportDisk, ImportSnapshots, UpdateDisk
from gpudev.settings import ReconcileSettings

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class DuplicateVolumes:
    """Further volumes of one disk, for an operator to sort out."""

    username: str
    disk_name: str
    linked: str | None
    """The disk's volume. None: the recorded one is gone, and none of these replaces it automatically."""
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkippedVolume:
    volume_id: str
    reason: str


@dataclass(slots=True)
class ReconcileStatistics:
    aws_volumes: int = 0
    db_records: int = 0
    synced: int = 0
    updated: int = 0
    created: int = 0
    errors: int = 0
    orphaned_db_active: int = 0
    orphaned_db_deleted: int = 0


@dataclass(slots=True)
class DiskReconcilePlan:
    writes: list[DiskWrite] = field(default_factory=list)
    snapshots: list[ImportSnapshots] = field(default_factory=list)
    """Written after `writes`."""
    statistics: ReconcileStatistics = field(default_factory=ReconcileStatistics)
    """As far as known before writing: synced, volumes, records and orphans."""
    duplicates: list[DuplicateVolumes] = field(default_factory=list)
    skipped: list[SkippedVolume] = field(default_factory=list)
    """Volumes that lack a tag."""
    errors: list[str] = field(default_factory=list)
    left_alone: list[DiskRecord] = field(default_factory=list)
    """Records with an operation in progress."""
    without_volume: list[DiskRecord] = field(default_factory=list)
    """Living records whose volume is missing or was never created."""


def plan_disk_writes(
    volumes: Sequence[Volume],
    snapshots: Sequence[Snapshot] | None,
    records: Sequence[DiskRecord],
    now: datetime,
    recorded_snapshots: AbstractSet[str] = frozenset(),
) -> DiskReconcilePlan:
    """`volumes` and `records` are complete. `snapshots` None: they could not be listed, so their columns stay.
    `recorded_snapshots`: our own ids and the cloud's, read after the listing: a snapshot of ours is recorded first."""
    plan = DiskReconcilePlan()
    plan.statistics.aws_volumes, plan.statistics.db_records = len(volumes), len(records)
    matching = _match_volumes(volumes, records, plan)
    by_volume = None if snapshots is None else _by_volume(snapshots)
    for record in records:
        own_volumes = matching.of_record.get(record.disk_id, [])
        _decide_record(record, own_volumes, by_volume, now, plan)
    unrecorded = _by_volume(each for each in snapshots or () if _is_importable(each, recorded_snapshots))
    plan.snapshots = _plan_snapshots(records, plan, unrecorded)
    for (username, disk_name), unknown in matching.unknown.items():
        first, *others = unknown
        plan.writes.append(_plan_import(username, disk_name, first, by_volume, unrecorded))
        _add_duplicates(plan, username, disk_name, first, others)
    return plan


def _is_importable(snapshot: Snapshot, recorded: AbstractSet[str]) -> bool:
    ids = {snapshot.snapshot_id, snapshot.tags.get(RECORDED_TAG, snapshot.snapshot_id)}
    return snapshot.state is not SnapshotState.ERROR and not ids & recorded


def _plan_snapshots(
    records: Sequence[DiskRecord], plan: DiskReconcilePlan, unrecorded: Mapping[str, Sequence[Snapshot]]
) -> list[ImportSnapshots]:
    """Of the volumes of living disks, also of missing volumes: their owners can restore these disks."""
    linked = {
        write.disk_id: new
        for write in plan.writes
        if isinstance(write, UpdateDisk) and (new := write.changes.get("ebs_volume_id", (None, None))[1])
    }
    found = []
    for record in records:
        volume_id = linked.get(record.disk_id, record.volume_id)
        if record.is_deleted or record.is_being_worked_on or not unrecorded.get(volume_id or ""):
            continue
        snapshots = tuple(unrecorded[volume_id or ""])
        found.append(ImportSnapshots(record.disk_id, record.disk_name, record.username, snapshots))
    return found


def _decide_record(
    record: DiskRecord,
    volumes: Sequence[Volume],
    snapshots: Mapping[str, Sequence[Snapshot]] | None,
    now: datetime,
    plan: DiskReconcilePlan,
) -> None:
    volume = _find_own_volume(record, volumes)
    _add_duplicates(plan, record.username, record.disk_name, volume, [each for each in volumes if each is not volume])
    if volume is None:
        if record.is_deleted:
            plan.statistics.orphaned_db_deleted += 1
            return
        plan.statistics.orphaned_db_active += 1
        plan.without_volume.append(record)
    if record.is_being_worked_on:
        plan.left_alone.append(record)
        return
    if volume is None:
        reason = "it has no volume yet" if record.volume_id is None else f"its volume {record.volume_id} is missing"
        _plan_write(record, _unlinked_fields(record, now), reason, plan)
    elif not _plan_write(record, _volume_fields(record, volume, snapshots), f"as volume {volume.volume_id} is", plan):
        plan.statistics.synced += 1


def _find_own_volume(record: DiskRecord, volumes: Sequence[Volume]) -> Volume | None:
    """The linked volume; for a record without a link, the oldest volume with its name. A link to a missing volume
    stays: another volume of the same name has other files."""
    if record.volume_id is not None:
        return next((each for each in volumes if each.volume_id == record.volume_id), None)
    return volumes[0] if volumes else None


def _volume_fields(
    record: DiskRecord, volume: Volume, snapshots: Mapping[str, Sequence[Snapshot]] | None
) -> dict[str, Any]:
    attached = bool(volume.attached_to)
    found: dict[str, Any] = {
        "ebs_volume_id": volume.volume_id,
        "zone": volume.zone or record.zone,
        "size_gb": volume.size_gb,
        "in_use": attached or record.is_held,
        "reservation_id": record.reservation_id if attached or record.is_held else None,
        "volume_missing_since": None,
    }
    if snapshots is not None:
        found |= _snapshot_fields(snapshots.get(volume.volume_id, ()))
    return found


def _unlinked_fields(record: DiskRecord, now: datetime) -> dict[str, Any]:
    return {
        "in_use": record.is_held,
        "reservation_id": record.reservation_id if record.is_held else None,
        "volume_missing_since": None if record.volume_id is None else record.volume_missing_since or now,
    }


def _snapshot_fields(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    usable = [each.created_at for each in snapshots if each.state is not SnapshotState.ERROR]
    return {
        "snapshot_count": len(snapshots),
        "is_backing_up": any(each.state is SnapshotState.PENDING for each in snapshots),
        "last_snapshot_at": max(usable, default=None),
    }


def _plan_import(
    username: str,
    disk_name: str,
    volume: Volume,
    snapshots: Mapping[str, Sequence[Snapshot]] | None,
    unrecorded: Mapping[str, Sequence[Snapshot]],
) -> ImportDisk:
    fields: dict[str, Any] = {
        "ebs_volume_id": volume.volume_id,
        "zone": volume.zone,
        "size_gb": volume.size_gb,
        "in_use": bool(volume.attached_to),
        "created_at": volume.created_at,
    }
    if snapshots is not None:
        fields |= _snapshot_fields(snapshots.get(volume.volume_id, ()))
    tagged_name = None if volume.disk_name == disk_name else volume.disk_name
    return ImportDisk(username, disk_name, fields, tagged_name, tuple(unrecorded.get(volume.volume_id, ())))


def _plan_write(record: DiskRecord, wanted: Mapping[str, Any], reason: str, plan: DiskReconcilePlan) -> bool:
    changes = {
        column: (old, new)
        for column, new in wanted.items()
        if (old := getattr(record, _ATTRIBUTES.get(column, column))) != new
    }
    if changes:
        plan.writes.append(UpdateDisk(record.disk_id, record.mark, record.disk_name, record.username, reason, changes))
    return bool(changes)


_ATTRIBUTES = {"ebs_volume_id": "volume_id"}


@dataclass(slots=True)
class _Matching:
    of_record: defaultdict[Any, list[Volume]] = field(default_factory=lambda: defaultdict(list))
    unknown: defaultdict[_Key, list[Volume]] = field(default_factory=lambda: defaultdict(list))
    """Volumes without a record, by (owner, disk name)."""


def _match_volumes(volumes: Iterable[Volume], records: Sequence[DiskRecord], plan: DiskReconcilePlan) -> _Matching:
    """Assigns volumes to records, oldest first: by the recorded link, by our id in the tags, or by name. Volumes whose
    names must be mapped come last: a name belongs to the volume that has it."""
    matching = _Matching()
    known = _Records(records)
    by_age = sorted(volumes, key=lambda each: (each.created_at, each.volume_id))
    names = _MappedNames(known, by_age)
    for volume in sorted(by_age, key=lambda each: not is_disk_name(each.disk_name or "")):
        record = known.find_linked(volume)
        if record is None:
            tagged = _read_tags(volume, plan)
            if tagged is None:
                continue
            key = names.map_name(tagged)
            record = known.find_by_tags(volume, key)
            if record is None:
                matching.unknown[key].append(volume)
                continue
        matching.of_record[record.disk_id].append(volume)
    return matching


class _MappedNames:
    """Disk names of volumes that are tagged with another system's. Two of a user's names that are mapped to the same
    stay distinct."""

    def __init__(self, known: "_Records", volumes: Sequence[Volume]) -> None:
        self._tagged_names: dict[_Key, str] = {}
        linked = {volume.volume_id: volume.disk_name or "" for volume in volumes}
        for record in known.living:
            tagged_name = linked.get(record.volume_id or "", record.disk_name)
            self._tagged_names[record.username, record.disk_name] = tagged_name

    def map_name(self, tagged: _Key) -> _Key:
        username, tagged_name = tagged
        mapped = map_disk_name(tagged_name)
        first = self._tagged_names.setdefault((username, mapped), tagged_name)
        if tagged_name not in (first, mapped):
            mapped = map_to_distinct_disk_name(tagged_name)
        return username, mapped


class _Records:
    def __init__(self, records: Sequence[DiskRecord]) -> None:
        # If a deleted and a living disk name the same volume, it belongs to the living one.
        by_life = sorted(records, key=lambda each: not each.is_deleted)
        self._by_link = {each.volume_id: each for each in by_life if each.volume_id is not None}
        self._by_id = {str(each.disk_id): each for each in records}
        self.living = [each for each in records if not each.is_deleted]
        self._living = {(each.username, each.disk_name): each for each in self.living}
        # A volume may belong to a deleted disk that was never linked; the last deleted one of the name counts.
        self._deleted: defaultdict[_Key, list[DiskRecord]] = defaultdict(list)
        for each in sorted(records, key=lambda each: each.created_at):
            if each.is_deleted and each.volume_id is None:
                self._deleted[each.username, each.disk_name].append(each)

    def find_linked(self, volume: Volume) -> DiskRecord | None:
        return self._by_link.get(volume.volume_id)

    def find_by_tags(self, volume: Volume, key: _Key) -> DiskRecord | None:
        tagged = self._by_id.get(volume.tags.get(DISK_ID_TAG, ""))
        if tagged is not None and tagged.username == key[0]:
            self._claim(tagged)
            return tagged
        if (living := self._living.get(key)) is not None or not self._deleted[key] or volume.disk_name != key[1]:
            return living
        return self._claim(self._deleted[key][-1])

    def _claim(self, record: DiskRecord) -> DiskRecord:
        """Links it to this volume. Further volumes of that name are duplicates, in this pass and the next."""
        unlinked = self._deleted[record.username, record.disk_name]
        if record in unlinked and not record.is_being_worked_on:
            unlinked.remove(record)
        return record


def _read_tags(volume: Volume, plan: DiskReconcilePlan) -> _Key | None:
    """Owner and tagged name. None: tags are missing, or the owner cannot be a user."""
    username, disk_name = volume.owner, volume.disk_name
    if not username or not disk_name:
        missing = f"the tag {OWNER_TAG}" if not username else f"a tag {' or '.join(DISK_NAME_TAGS)}"
        plan.skipped.append(SkippedVolume(volume.volume_id, f"it lacks {missing}"))
        return None
    try:
        return check_username(username), disk_name
    except Invalid as error:
        plan.errors.append(f"volume {volume.volume_id} cannot be imported: {error}")
        return None


def _add_duplicates(
    plan: DiskReconcilePlan, username: str, disk_name: str, linked: Volume | None, others: Sequence[Volume]
) -> None:
    if others:
        ids = tuple(each.volume_id for each in others)
        plan.duplicates.append(DuplicateVolumes(username, disk_name, linked.volume_id if linked else None, ids))


def _by_volume(snapshots: Iterable[Snapshot]) -> Mapping[str, Sequence[Snapshot]]:
    found: defaultdict[str, list[Snapshot]] = defaultdict(list)
    for snapshot in snapshots:
        found[snapshot.volume_id].append(snapshot)
    return found


# Orphaned volumes and snapshots and their cost: reported, never removed.


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
    """For a snapshot an upper bound: the cloud charges changed blocks, but reports the full size."""


def find_orphaned_storage(
    volumes: Sequence[Volume],
    snapshots: Sequence[Snapshot],
    records: Sequence[DiskRecord],
    prices: ReconcileSettings,
    now: datetime,
    *,
    ours: AbstractSet[str] = frozenset(),
) -> list[OrphanedStorage]:
    """The most expensive first. `ours`: objects that our operations manage: snapshots of disks that have moved to
    another volume, and replaced volumes."""
    reasons = _orphan_reasons(volumes, snapshots, records, now)
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
    return sorted(found, key=lambda each: (-each.monthly_cost, each.id))


def _orphan_reasons(
    volumes: Sequence[Volume], snapshots: Sequence[Snapshot], records: Sequence[DiskRecord], now: datetime
) -> dict[str, str]:
    plan = plan_disk_writes(volumes, snapshots, records, now)
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
