"""Each promise about disks is broken by something that looks reasonable, and is seen to be broken.

A mutant replaces one decision; the lives of disks that keep every promise otherwise (`test_disk_life`) then do not.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from gpudev.domain.disks.operations import (
    DiskState,
    OperationKind,
    RecordedSnapshotId,
    ResizeDisk,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    VolumeRecord,
    VolumeStatus,
)
from gpudev.planning.disks import acceptance, operation_steps
from gpudev.planning.disks.operation_results import EnsureSnapshot, FinishOperation, OperationStep, RemoveVolume
from gpudev.planning.disks.operation_steps import OperationContext
from gpudev.ports.cloud import RECORDED_TAG, Volume
from gpudev.ports.disks import DiskMaintenance
from support.disks import scenarios
from support.disks.memory_cloud import MemoryCloud
from support.disks.memory_store import MemoryDiskStore
from support.disks.mutants import Patch, any_snapshot_will_do, attached_is_no_matter, old_volumes_are_left


def saved_once_is_saved_for_ever(patch: Patch) -> None:
    def ready(context: OperationContext, zone: str | None, how: str) -> OperationStep:
        return FinishOperation(how, replace(context.disk, zone=zone))

    patch.setattr(operation_steps, "_ready", ready)


def an_empty_volume_for_a_lost_one(patch: Patch) -> None:
    patch.setattr(operation_steps, "_make_from_records", lambda context: context.new_volume(None, "zone-a"))


def the_newest_snapshot_with_the_tag(patch: Patch) -> None:
    """Restores from whatever carries our tag: a scanner's copy does, too."""
    original = MemoryCloud.ensure_volume

    async def ensure_volume(self: MemoryCloud, token: str, **wanted: Any) -> Volume:
        chosen = self.snapshots_there.get(wanted.get("from_snapshot") or "")
        if chosen is not None:
            tag = chosen.tags[RECORDED_TAG]
            alike = [one for one in self.snapshots_there.values() if one.tags.get(RECORDED_TAG) == tag]
            wanted["from_snapshot"] = alike[-1].snapshot_id
        return await original(self, token, **wanted)

    patch.setattr(MemoryCloud, "ensure_volume", ensure_volume)


def a_clone_shares_the_volume(patch: Patch) -> None:
    def clone(context: OperationContext) -> OperationStep:
        assert context.facts.source is not None
        return FinishOperation("fast", replace(context.disk, volume_id=context.facts.source.volume_id, zone="zone-a"))

    patch.setattr(operation_steps, "_clone", clone)


def no_time_to_think_again(patch: Patch) -> None:
    """Purges what was deleted, whenever that was."""
    original = acceptance._Acceptance.purge

    def purge(self: Any, request: Any) -> Any:
        return original(replace(self, settings=replace(self.settings, retention=timedelta(0))), request)

    async def deleted_before(self: MemoryDiskStore, moment: datetime) -> list[DiskMaintenance]:
        return [DiskMaintenance(one.user_id, one.disk_id) for one in self.all_disks.values() if one.is_deleted]

    patch.setattr(acceptance._Acceptance, "purge", purge)
    patch.setattr(MemoryDiskStore, "list_deleted_before", deleted_before)


def old_ones_go_even_the_last(patch: Patch) -> None:
    original = acceptance.prunable

    def prunable(snapshots: Any, protected: Any, now: datetime, settings: Any) -> list[SnapshotRecord]:
        old = [one for one in snapshots if one.created_at < now - timedelta(days=100)]
        return old or original(snapshots, protected, now, settings)

    patch.setattr(acceptance, "prunable", prunable)


def a_snapshot_that_has_begun_is_as_good_as_done(patch: Patch) -> None:
    """The volume goes while the cloud still copies from it."""

    def removal(self: OperationContext) -> OperationStep | None:
        for one in self.facts.volumes:
            if one.status is VolumeStatus.RETIRED and one.volume_id is not None:
                return RemoveVolume(one, one.volume_id)
        return None

    def until_complete(self: OperationContext, record: SnapshotRecord) -> OperationStep | None:
        return None if record.why is SnapshotReason.BEFORE_RESTORE else original(self, record)

    original = OperationContext.until_complete
    patch.setattr(OperationContext, "until_complete", until_complete)
    patch.setattr(OperationContext, "removal_of_replaced", removal)


def what_is_linked_is_ours(patch: Patch) -> None:
    original = operation_steps._purge

    def purge(context: OperationContext) -> OperationStep:
        disk = context.disk
        if disk.volume_id is not None:
            operation_id = context.operation.operation_id
            record = VolumeRecord(
                uuid4(), disk.disk_id, operation_id, VolumeStatus.KEPT, "zone-a", 1, context.now, volume_id="other"
            )
            return RemoveVolume(record, disk.volume_id)
        return original(context)

    patch.setattr(operation_steps, "_purge", purge)


def asked_for_before_it_is_written_down(patch: Patch) -> None:
    original = OperationContext.own_snapshot

    def own_snapshot(self: OperationContext, disk: DiskState, why: SnapshotReason) -> OperationStep | SnapshotRecord:
        found = original(self, disk, why)
        if isinstance(found, SnapshotRecord) or disk.volume_id is None:
            return found
        new = RecordedSnapshotId(uuid4())
        operation_id = self.operation.operation_id
        status = SnapshotStatus.BEGINNING
        record = SnapshotRecord(new, disk.disk_id, operation_id, disk.volume_id, why, status, self.now)
        return EnsureSnapshot(record, self.tags(disk))

    patch.setattr(OperationContext, "own_snapshot", own_snapshot)


def what_was_left_out_is_no_matter(patch: Patch) -> None:
    whole = SnapshotStatus.COMPLETED
    patch.setattr(SnapshotRecord, "is_whole", property(lambda record: record.status is whole))


def nobody_counts(patch: Patch) -> None:
    patch.setattr(acceptance._Acceptance, "_within_quota", lambda *_, **__: None)


def names_are_only_names(patch: Patch) -> None:
    patch.setattr(acceptance._Acceptance, "_free_name", lambda _, name, *__: name)


def disks_may_shrink(patch: Patch) -> None:
    def resize(self: Any, request: ResizeDisk) -> Any:
        disk = self._living(request.disk_id)
        operation = self._operation(OperationKind.RESIZE, disk, size_gb=request.size_gb)
        return acceptance.OperationChanges(operation, replace(disk, size_gb=request.size_gb))

    patch.setattr(acceptance._Acceptance, "resize", resize)


Mutant = Callable[[Patch], None]
MUTANTS: Mapping[Mutant, tuple[scenarios.Life, str]] = {
    any_snapshot_will_do: (scenarios.restore_what_was_not_saved, "bytes"),
    saved_once_is_saved_for_ever: (scenarios.restore_an_older_one, "bytes|retention"),
    an_empty_volume_for_a_lost_one: (scenarios.lose_the_volume, "bytes"),
    the_newest_snapshot_with_the_tag: (scenarios.restore_an_older_one, "bytes"),
    attached_is_no_matter: (scenarios.come_back, "writers"),
    a_clone_shares_the_volume: (scenarios.clone, "writers"),
    no_time_to_think_again: (scenarios.delete_and_have_back, "retention"),
    old_ones_go_even_the_last: (scenarios.prune, "retention"),
    a_snapshot_that_has_begun_is_as_good_as_done: (scenarios.restore_what_was_not_saved, "retention"),
    what_is_linked_is_ours: (scenarios.purge_what_others_made, "others"),
    what_was_left_out_is_no_matter: (scenarios.restore_what_no_snapshot_could_hold, "retention"),
    old_volumes_are_left: (scenarios.move_between_zones, "leaks"),
    nobody_counts: (scenarios.want_too_much, "quota"),
    names_are_only_names: (scenarios.want_too_much, "names"),
    disks_may_shrink: (scenarios.want_too_much, "sizes"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_breaks_the_promise_it_is_about(mutant: Mutant, monkeypatch: Patch) -> None:
    life, promise = MUTANTS[mutant]
    scenarios.live(life)
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=f"^({promise}): "):
        scenarios.live(life)


def test_what_is_asked_for_before_it_is_written_down_is_lost_by_a_crash_at_one_moment(monkeypatch: Patch) -> None:
    asked_for_before_it_is_written_down(monkeypatch)
    calls = scenarios.live(scenarios.come_back).trouble.calls  # without a crash nobody notices
    leaks = []
    for crash_at in range(1, calls + 1):
        try:
            scenarios.live(scenarios.come_back, crash_at=crash_at, after=True)
        except AssertionError as error:
            leaks.append(str(error))
    assert leaks
    assert all(one.startswith("leaks: ") for one in leaks)
