"""Snapshots as folders: recorded first, then copied; the record shows when they are complete.

The next request for the snapshot starts an interrupted copy again. Everything here blocks and runs in threads.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import structlog

from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.filesystem import filesystem_type, sync_filesystem
from gpudev.adapters.local.volumes.thread_jobs import JobStopped, ThreadJob, open_directory, translate_errors
from gpudev.adapters.local.volumes.tree_copy import ContentsCounter, CopyMethod, CopyProgress, EarlierCopy, TreeCopy
from gpudev.adapters.local.volumes.tree_walk import ensure_passable, remove_folder
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
"""File systems that also set a file's ctime when it is changed through mapped memory."""
_COARSE_NS = 2 * 10**9
"""More than the delay of any file system's clock."""


class LocalSnapshotStore:
    def __init__(self, layout: VolumeLayout) -> None:
        self._layout = layout

    def list_snapshots(self) -> list[Snapshot]:
        """All snapshots, the oldest first."""
        with translate_errors("cannot list the snapshots"):
            return _list_snapshots(self._layout)

    def find_snapshot_record(self, snapshot_id: str) -> LocalSnapshotRecord | None:
        if not is_id(snapshot_id):
            return None
        with translate_errors(f"cannot read snapshot {snapshot_id}"):
            return self._layout.find_snapshot_record(snapshot_id)

    def begin_snapshot(self, snapshot_id: str, desired: LocalSnapshotRecord) -> LocalSnapshotRecord:
        """Record a new snapshot. The volume cannot be removed until it is complete or removed."""
        layout, volume_id = self._layout, desired.volume_id
        if not is_id(volume_id):
            raise ClusterError(f"volume {volume_id} not found")
        with (
            translate_errors(f"cannot make a snapshot of volume {volume_id}"),
            layout.lock(VolumeOrSnapshot.VOLUME, volume_id),
            layout.lock(VolumeOrSnapshot.SNAPSHOT, snapshot_id),
        ):
            if found := layout.find_snapshot_record(snapshot_id):
                return found
            if not layout.volume_path(volume_id).is_dir():
                raise ClusterError(f"volume {volume_id} not found")
            volume = layout.find_volume_record(volume_id)
            record = replace(desired, size_gb=volume.size_gb if volume else 0)
            draft = layout.draft_path(VolumeOrSnapshot.SNAPSHOT, snapshot_id)
            remove_folder(draft)
            draft.mkdir(mode=0o700)
            layout.write_snapshot_record(draft, record)
            layout.move_into_place(draft, layout.snapshot_path(snapshot_id))
            return record

    def complete_snapshot(self, snapshot_id: str, job: ThreadJob) -> None:
        """Copy the volume. An error is recorded; a stopped job, or one of another process, is not an error."""
        layout = self._layout
        with (
            translate_errors(f"cannot make snapshot {snapshot_id}"),
            layout.lock(VolumeOrSnapshot.SNAPSHOT, snapshot_id, timeout_s=0),
        ):
            record = layout.find_snapshot_record(snapshot_id)
            if record is None or record.state is not SnapshotState.PENDING:
                return
            folder = layout.snapshot_path(snapshot_id)
            try:
                completed = self._copy(record, folder, job)
            except JobStopped:
                raise
            except Exception as error:  # noqa: BLE001 - unrecorded, the same copy would start at every request
                _remove_partial_copy(folder, job)
                completed = replace(record, state=SnapshotState.ERROR, error=_describe_error(error))
            layout.write_snapshot_record(folder, completed)

    def remove_snapshot(self, snapshot_id: str) -> Path | None:
        """Move it to the trash. Returns the folder that is left to be removed; None: there is none."""
        if not is_id(snapshot_id):
            return None
        with (
            translate_errors(f"cannot remove snapshot {snapshot_id}"),
            self._layout.lock(VolumeOrSnapshot.SNAPSHOT, snapshot_id),
        ):
            return self._layout.move_to_trash(self._layout.snapshot_path(snapshot_id))

    def _copy(self, record: LocalSnapshotRecord, folder: Path, job: ThreadJob) -> LocalSnapshotRecord:
        _remove_partial_copy(folder, job)
        (folder / _TREE).mkdir(mode=0o700)
        copied_files = CopiedFileTable(folder / _FILES, create=True)
        contents = ContentsCounter()
        volume = self._layout.volume_path(record.volume_id)
        ensure_passable(volume)  # permanently: a home that its owner cannot enter is useless
        try:
            with (
                open_directory(volume) as source,
                open_directory(folder / _TREE) as target,
                self._earlier_copy(record) as earlier,
            ):
                cutoff_ns = _sync_and_get_cutoff(source)
                copy = TreeCopy(
                    source,
                    target,
                    copied_files,
                    job.progress,
                    earlier=earlier,
                    settled_before_ns=cutoff_ns,
                    contents=contents,
                    check=job.check,
                )
                copy.run()
                copied_files.finish()
                copied_files.close()
                sync_filesystem(target)
        finally:
            copied_files.close()
        progress = job.progress
        return replace(
            record,
            state=SnapshotState.COMPLETED,
            method=progress.method.value,
            files=progress.files,
            folders=progress.folders,
            left_out=progress.left_out,
            lacks=_describe_unreadable(progress),
            notes=tuple(progress.notes),
            contents=contents.to_contents().to_json(),
        )

    @contextlib.contextmanager
    def _earlier_copy(self, record: LocalSnapshotRecord) -> Iterator[EarlierCopy | None]:
        """The volume's newest complete snapshot, locked against removal. None: there is none to link to."""
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
            copied_files = CopiedFileTable(folder / _FILES)
            stack.callback(copied_files.close)
            return EarlierCopy(stack.enter_context(open_directory(folder / _TREE)), copied_files)
        return None


def pending_snapshot_ids(layout: VolumeLayout, volume_id: str) -> list[str]:
    return [
        snapshot.snapshot_id
        for snapshot in _list_snapshots(layout)
        if snapshot.volume_id == volume_id and snapshot.state is SnapshotState.PENDING
    ]


def _list_snapshots(layout: VolumeLayout) -> list[Snapshot]:
    records = [(snapshot_id, layout.find_snapshot_record(snapshot_id)) for snapshot_id in layout.snapshot_ids()]
    found = [record.to_snapshot(snapshot_id) for snapshot_id, record in records if record]
    return sorted(found, key=lambda snapshot: (snapshot.created_at, snapshot.snapshot_id))


def _sync_and_get_cutoff(source: int) -> int | None:
    """The time before which a file's last change must lie, so that its ctime shows every later change.

    None: ctimes of this file system do not show every change.
    """
    if filesystem_type(source) not in _RELIABLE_CTIME:
        return None
    now = time.time_ns()
    sync_filesystem(source)
    return now - _COARSE_NS


def _describe_unreadable(progress: CopyProgress) -> str | None:
    if not progress.unread:
        return None
    entries = "1 entry" if progress.unread == 1 else f"{progress.unread} entries"
    paths = ", ".join(progress.unread_paths)
    more = ", …" if progress.unread > len(progress.unread_paths) else ""
    return f"{entries} of other owners that cannot be read: {paths}{more}"


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError):
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error)
    log.error("snapshot.broken", exc_info=error)
    return f"internal error ({type(error).__name__}: {error})"


def _remove_partial_copy(folder: Path, job: ThreadJob) -> None:
    """Remove what an earlier attempt left behind."""
    remove_folder(folder / _TREE, job.check)
    for name in os.listdir(folder):  # noqa: PTH208
        if name.startswith(_FILES):
            (folder / name).unlink(missing_ok=True)
