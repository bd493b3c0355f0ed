"""Disk pass: list volumes, snapshots and recorded disks once, write what differs.

If volumes cannot be listed, nothing is written; without snapshots, the rest is. It may be stopped anywhere and run
again.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.errors import GpuDevError
from gpudev.planning.disks.reconcile_disks import (
    DiskReconcilePlan,
    DuplicateVolumes,
    OrphanedStorage,
    ReconcileStatistics,
    SkippedVolume,
    find_orphaned_storage,
    plan_disk_writes,
)
from gpudev.ports.clock import Clock
from gpudev.ports.cloud import DISK_ID_TAG, DISK_NAME_TAGS, OWNER_TAG, CloudDisks, CloudView, Snapshot, Volume
from gpudev.ports.disks import (
    DiskRecord,
    DiskRecords,
    DiskWrite,
    ImportDisk,
    ImportSnapshots,
    UnlinkedDisks,
    UpdateDisk,
)
from gpudev.settings import ReconcileSettings

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DiskChange:
    username: str
    disk_name: str
    kind: str
    changes: Mapping[str, tuple[Any, Any]]
    """Column → (old, new)."""


@dataclass(slots=True)
class DiskReconcileReport:
    statistics: ReconcileStatistics = field(default_factory=ReconcileStatistics)
    changes: list[DiskChange] = field(default_factory=list)
    duplicates: list[DuplicateVolumes] = field(default_factory=list)
    skipped: list[SkippedVolume] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    """Disks with a running operation, or written by another process meanwhile."""
    without_volume: list[str] = field(default_factory=list)
    """The disks of `orphaned_db_active`, each with the reason."""
    errors: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class DiskReconciliation:
    cloud: CloudView
    records: DiskRecords
    clock: Clock
    by: str

    async def run(self, *, dry_run: bool = False) -> DiskReconcileReport:
        report = DiskReconcileReport()
        try:
            # Records first: a disk created meanwhile then appears at worst as a volume without a record, and importing
            # it again changes nothing. In the other order it would appear as a record without its volume.
            records = await self.records.list_records()
        except GpuDevError as error:
            _add_error(report, f"nothing was changed: {error}")
            return report
        volumes, snapshots = await self._list_cloud()
        if isinstance(volumes, GpuDevError):
            _add_error(report, f"nothing was changed: {volumes}")
            return report
        if isinstance(snapshots, GpuDevError):
            _add_error(report, f"snapshots could not be listed, so what is recorded about them stays: {snapshots}")
        try:
            recorded = await self.records.list_snapshot_ids()
        except GpuDevError as error:
            _add_error(report, f"nothing was changed: {error}")
            return report
        listed = None if isinstance(snapshots, GpuDevError) else snapshots
        plan = plan_disk_writes(volumes, listed, records, self.clock.now(), recorded)
        _copy_plan(plan, report)
        writes = [*plan.writes, *plan.snapshots]
        if dry_run:
            _count_writes(writes, report)
        else:
            await self._write(writes, report)
        return report

    async def find_orphans(self, prices: ReconcileSettings) -> list[OrphanedStorage]:
        """Raises if anything cannot be listed: an incomplete report would look like good news."""
        volumes, snapshots = await self.cloud.volumes(), await self.cloud.snapshots()
        # Last: what was created before the listing is recorded by now.
        records, ours = await self.records.list_records(), await self.records.list_owned_ids()
        return find_orphaned_storage(volumes, snapshots, records, prices, self.clock.now(), ours=ours)

    async def _list_cloud(self) -> tuple[Sequence[Volume] | GpuDevError, Sequence[Snapshot] | GpuDevError]:
        """Both concurrently."""
        async with asyncio.TaskGroup() as listings:
            volumes = listings.create_task(_or_error(self.cloud.volumes()))
            snapshots = listings.create_task(_or_error(self.cloud.snapshots()))
        return volumes.result(), snapshots.result()

    async def _write(self, writes: Sequence[DiskWrite], report: DiskReconcileReport) -> None:
        try:
            written = await self.records.write_records(writes, now=self.clock.now(), by=self.by)
        except GpuDevError as error:
            _add_error(report, f"not everything was written: {error}")
            return
        _count_writes(written.done, report)
        report.left_alone += [f"{_name(write)}: changed by another writer meanwhile" for write in written.stale]
        for write, error_text in written.failed:
            _add_error(report, f"{_name(write)} was not written: {error_text}")


async def _or_error(listing: Awaitable[_T]) -> _T | GpuDevError:
    """A failed listing does not stop the other one."""
    try:
        return await listing
    except GpuDevError as error:
        return error


def _copy_plan(plan: DiskReconcilePlan, report: DiskReconcileReport) -> None:
    errors_so_far = report.statistics.errors
    report.statistics = plan.statistics
    report.statistics.errors = errors_so_far
    report.duplicates, report.skipped = plan.duplicates, plan.skipped
    report.left_alone = [
        f"{each.username}/{each.disk_name}: operation {each.operation_id} is under way" for each in plan.left_alone
    ]
    report.without_volume = list(map(_describe_missing, plan.without_volume))
    for error in plan.errors:
        _add_error(report, error)


def _describe_missing(record: DiskRecord) -> str:
    name = f"{record.username}/{record.disk_name}"
    if record.volume_id is None:
        return f"{name}: it has no volume yet"
    since = f" since {record.volume_missing_since.isoformat()}" if record.volume_missing_since else ""
    return f"{name}: its volume {record.volume_id} is missing{since}"


def _count_writes(writes: Sequence[DiskWrite], report: DiskReconcileReport) -> None:
    for write in writes:
        match write:
            case ImportDisk():
                report.statistics.created += 1
                changes = {column: (None, value) for column, value in write.fields.items()}
                report.changes.append(DiskChange(write.username, write.disk_name, "import", changes))
            case UpdateDisk():
                report.statistics.updated += 1
                report.changes.append(DiskChange(write.username, write.disk_name, "update", write.changes))
            case ImportSnapshots():  # the disk's record is as it was
                ids = {each.snapshot_id: (None, each.created_at) for each in write.snapshots}
                report.changes.append(DiskChange(write.username, write.disk_name, "snapshots", ids))
            case _:
                assert_never(write)


def _add_error(report: DiskReconcileReport, message: str) -> None:
    report.statistics.errors += 1
    report.errors.append(message)


def _name(write: DiskWrite) -> str:
    return f"{write.username}/{write.disk_name}"


# Adoption: a disk from before there were volumes is a folder under its id, which becomes its volume. Nothing is moved
# or copied. It may be stopped anywhere and run again.


@dataclass(frozen=True, slots=True)
class DiskAdoption:
    store: UnlinkedDisks
    cloud: CloudDisks
    """The volumes of this machine."""
    clock: Clock
    settings: DiskSettings

    async def adopt_all(self) -> int:
        """The number of adopted disks."""
        adopted = 0
        for disk in await self.store.list_unlinked_disks():
            volume_id = str(disk.disk_id)
            if await self.cloud.find_volume(volume_id) is None:
                continue  # never used: its volume is created at first use
            tags = {OWNER_TAG: disk.username, DISK_NAME_TAGS[0]: disk.name, DISK_ID_TAG: volume_id}
            await self.cloud.tag_volume(volume_id, tags)
            volume = await self.cloud.grow_volume(volume_id, disk.size_gb or self.settings.default_size_gb)
            adopted += await self.store.adopt_volume(disk, volume, self.settings.zone, now=self.clock.now())
        return adopted
