"""Snapshots as folders: written down first, copied then, complete when their record says so.

A copy that was broken off is begun again, by whoever asks next. Everything here blocks and runs in threads.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import structlog

from gpudev.adapters.local.volumes.contents import ContentsCounter
from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.filesystem import filesystem_type, sync_filesystem
from gpudev.adapters.local.volumes.thread_jobs import JobStopped, ThreadJob, open_directory, translate_errors
from gpudev.adapters.local.volumes.tree_copy import CopyMethod, CopyProgress, EarlierCopy, TreeCopy
from gpudev.adapters.local.volumes.tree_removal import remove_folder
from gpudev.adapters.local.volumes.tree_walk import ensure_passable
from gpudev.adapters.local.volumes.volume_layout import (
    LocalSnapshotRecord,
    VolumeBusy,
    VolumeLayout,
    VolumeOrSnapshot,
    is_id,
)
from gpudev.domain.errors import ClusterError
from gpudev.ports.cloud import Snapshot, SnapshotState

log = structlog.get_logger(__name__)
_TREE, _FILES = "tree", "files"
_RELIABLE_CTIME = ("ext2", "ext3", "ext4", "xfs", "btrfs")
"""File systems that set a file's ctime also when it is changed through mapped memory."""
_COARSE_NS = 2 * 10**9
"""More than the clock of any of them is behind."""


class LocalSnapshotStore:
    def __init__(self, folders: VolumeLayout) -> None:
        self._layout = folders

    def list_snapshots(self) -> list[Snapshot]:
        """All, the oldest first."""
        with translate_errors("the snapshots cannot be listed"):
            return _list_snapshots(self._layout)

    def find_snapshot_record(self, snapshot_id: str) -> LocalSnapshotRecord | None:
        if not is_id(snapshot_id):
            return None
        with translate_errors(f"the snapshot {snapshot_id} cannot be looked at"):
            return self._layout.find_snapshot_record(snapshot_id)

    def begin_snapshot(self, snapshot_id: str, wanted: LocalSnapshotRecord) -> LocalSnapshotRecord:
        """From now on the volume stays until this is complete or removed."""
        folders, volume_id = self._layout, wanted.volume_id
        if not is_id(volume_id):
            raise ClusterError(f"there is no disk {volume_id}")
        with (
            translate_errors(f"a snapshot of {volume_id} cannot be made"),
            folders.lock(VolumeOrSnapshot.VOLUME, volume_id),
            folders.lock(VolumeOrSnapshot.SNAPSHOT, snapshot_id),
        ):
            if found := folders.find_snapshot_record(snapshot_id):
                return found
            if not folders.volume_path(volume_id).is_dir():
                raise ClusterError(f"there is no disk {volume_id}")
            volume = folders.find_volume_record(volume_id)
            record = replace(wanted, size_gb=volume.size_gb if volume else 0)
            draft = folders.draft_path(VolumeOrSnapshot.SNAPSHOT, snapshot_id)
            remove_folder(draft)
            draft.mkdir(mode=0o700)
            folders.write_snapshot_record(draft, record)
            folders.move_into_place(draft, folders.snapshot_path(snapshot_id))
            return record

    def complete_snapshot(self, snapshot_id: str, job: ThreadJob) -> None:
        """What goes wrong is written down; what was broken off or is being done by another is not wrong."""
        folders = self._layout
        with (
            translate_errors(f"the snapshot {snapshot_id} cannot be made"),
            folders.lock(VolumeOrSnapshot.SNAPSHOT, snapshot_id, timeout_s=0),
        ):
            record = folders.find_snapshot_record(snapshot_id)
            if record is None or record.state is not SnapshotState.PENDING:
                return
            folder = folders.snapshot_path(snapshot_id)
            try:
                made = self._copy(record, folder, job)
            except JobStopped:
                raise
            except Exception as error:  # noqa: BLE001 - a copy nobody foresaw to fail would be begun at every look
                _remove_partial_copy(folder, job)
                made = replace(record, state=SnapshotState.ERROR, error=_describe_error(error))
            folders.write_snapshot_record(folder, made)

    def remove_snapshot(self, snapshot_id: str) -> Path | None:
        """What is left to be removed."""
        if not is_id(snapshot_id):
            return None
        with (
            translate_errors(f"the snapshot {snapshot_id} cannot be removed"),
            self._layout.lock(VolumeOrSnapshot.SNAPSHOT, snapshot_id),
        ):
            return self._layout.move_to_trash(self._layout.snapshot_path(snapshot_id))

    def _copy(self, record: LocalSnapshotRecord, folder: Path, job: ThreadJob) -> LocalSnapshotRecord:
        _remove_partial_copy(folder, job)
        (folder / _TREE).mkdir(mode=0o700)
        known = CopiedFileTable(folder / _FILES, create=True)
        contents = ContentsCounter()
        volume = self._layout.volume_path(record.volume_id)
        ensure_passable(volume)  # for good: a home that is closed to its owner is of no use to anybody
        try:
            with (
                open_directory(volume) as source,
                open_directory(folder / _TREE) as target,
                self._earlier_copy(record) as earlier,
            ):
                settled = _sync_and_get_cutoff(source)
                copy = TreeCopy(
                    source,
                    target,
                    known,
                    job.progress,
                    earlier=earlier,
                    settled_before_ns=settled,
                    contents=contents,
                    check=job.check,
                )
                copy.run()
                known.finish()
                known.close()
                sync_filesystem(target)
        finally:
            known.close()
        tally = job.progress
        return replace(
            record,
            state=SnapshotState.COMPLETED,
            method=tally.method.value,
            files=tally.files,
            folders=tally.folders,
            left_out=tally.left_out,
            lacks=_describe_unreadable(tally),
            notes=tuple(tally.notes),
            contents=contents.to_contents().to_json(),
        )

    @contextlib.contextmanager
    def _earlier_copy(self, record: LocalSnapshotRecord) -> Iterator[EarlierCopy | None]:
        """The volume's newest complete snapshot, kept from being removed meanwhile."""
        with contextlib.ExitStack() as stack:
            yield self._lock_earlier_copy(record, stack)

    def _lock_earlier_copy(self, record: LocalSnapshotRecord, stack: contextlib.ExitStack) -> EarlierCopy | None:
        for snapshot in reversed(_list_snapshots(self._layout)):
            if snapshot.volume_id != record.volume_id or snapshot.state is not SnapshotState.COMPLETED:
                continue
            try:
                stack.enter_context(
                    self._layout.lock(VolumeOrSnapshot.SNAPSHOT, snapshot.snapshot_id, shared=True, timeout_s=0)
                )
            except VolumeBusy:
                continue
            folder = self._layout.snapshot_path(snapshot.snapshot_id)
            found = self._layout.find_snapshot_record(snapshot.snapshot_id)
            if found is None or found.method == CopyMethod.REFLINK or not (folder / _FILES).exists():
                return None
            known = CopiedFileTable(folder / _FILES)
            stack.callback(known.close)
            return EarlierCopy(stack.enter_context(open_directory(folder / _TREE)), known)
        return None


def pending_snapshot_ids(folders: VolumeLayout, volume_id: str) -> list[str]:
    return [
        snapshot.snapshot_id
        for snapshot in _list_snapshots(folders)
        if snapshot.volume_id == volume_id and snapshot.state is SnapshotState.PENDING
    ]


def _list_snapshots(folders: VolumeLayout) -> list[Snapshot]:
    records = [(snapshot_id, folders.find_snapshot_record(snapshot_id)) for snapshot_id in folders.snapshot_ids()]
    found = [record.to_snapshot(snapshot_id) for snapshot_id, record in records if record]
    return sorted(found, key=lambda one: (one.created_at, one.snapshot_id))


def _sync_and_get_cutoff(source: int) -> int | None:
    """Before which moment a file must have been touched last so that its ctime tells from now on whether it changed.
    None: this file system does not tell."""
    if filesystem_type(source) not in _RELIABLE_CTIME:
        return None
    now = time.time_ns()
    sync_filesystem(source)
    return now - _COARSE_NS


def _describe_unreadable(progress: CopyProgress) -> str | None:
    if not progress.unread:
        return None
    named = ", ".join(progress.unread_paths)
    more = ", …" if progress.unread > len(progress.unread_paths) else ""
    return f"{progress.unread} that belong{'s' if progress.unread == 1 else ''} to others and cannot be read: {named}{more}"


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError):
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error)
    log.error("disks.snapshot_unforeseen", exc_info=error)
    return f"something went wrong that nobody foresaw ({type(error).__name__}: {error})"


def _remove_partial_copy(folder: Path, job: ThreadJob) -> None:
    """Of what an earlier try left behind."""
    remove_folder(folder / _TREE, job.check)
    for name in os.listdir(folder):  # noqa: PTH208
        if name.startswith(_FILES):
            (folder / name).unlink(missing_ok=True)
