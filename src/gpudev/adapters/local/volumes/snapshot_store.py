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

from gpudev.adapters.local.opening import open_up
from gpudev.adapters.local.volume_records import SnapshotRecord
from gpudev.adapters.local.volumes.contents import ContentsCount
from gpudev.adapters.local.volumes.copied_files import KnownFiles
from gpudev.adapters.local.volumes.filesystem import kind_of, sync_filesystem
from gpudev.adapters.local.volumes.thread_jobs import Job, Stopped, opened, speaking
from gpudev.adapters.local.volumes.tree_copy import Earlier, Method, Tally, TreeCopy
from gpudev.adapters.local.volumes.tree_removal import remove_folder
from gpudev.adapters.local.volumes.volume_layout import Busy, Thing, VolumeFolders, is_id
from gpudev.domain.errors import ClusterError
from gpudev.ports.cloud import Snapshot, SnapshotState

log = structlog.get_logger(__name__)
_TREE, _FILES = "tree", "files"
_TELL_CHANGES = ("ext2", "ext3", "ext4", "xfs", "btrfs")
"""File systems that set a file's ctime also when it is changed through mapped memory."""
_COARSE_NS = 2 * 10**9
"""More than the clock of any of them is behind."""


class Snapshots:
    def __init__(self, folders: VolumeFolders) -> None:
        self._folders = folders

    def list(self) -> list[Snapshot]:
        """All, the oldest first."""
        with speaking("the snapshots cannot be listed"):
            return _list(self._folders)

    def find_record(self, snapshot_id: str) -> SnapshotRecord | None:
        if not is_id(snapshot_id):
            return None
        with speaking(f"the snapshot {snapshot_id} cannot be looked at"):
            return self._folders.find_snapshot_record(snapshot_id)

    def begin(self, snapshot_id: str, wanted: SnapshotRecord) -> SnapshotRecord:
        """From now on the volume stays until this is complete or removed."""
        folders, volume_id = self._folders, wanted.volume_id
        if not is_id(volume_id):
            raise ClusterError(f"there is no disk {volume_id}")
        with (
            speaking(f"a snapshot of {volume_id} cannot be made"),
            folders.hold(Thing.VOLUME, volume_id),
            folders.hold(Thing.SNAPSHOT, snapshot_id),
        ):
            if found := folders.find_snapshot_record(snapshot_id):
                return found
            if not folders.volume(volume_id).is_dir():
                raise ClusterError(f"there is no disk {volume_id}")
            volume = folders.find_volume_record(volume_id)
            record = replace(wanted, size_gb=volume.size_gb if volume else 0)
            draft = folders.draft(Thing.SNAPSHOT, snapshot_id)
            remove_folder(draft)
            draft.mkdir(mode=0o700)
            folders.write_snapshot_record(draft, record)
            folders.put(draft, folders.snapshot(snapshot_id))
            return record

    def complete(self, snapshot_id: str, job: Job) -> None:
        """What goes wrong is written down; what was broken off or is being done by another is not wrong."""
        folders = self._folders
        with (
            speaking(f"the snapshot {snapshot_id} cannot be made"),
            folders.hold(Thing.SNAPSHOT, snapshot_id, patience_s=0),
        ):
            record = folders.find_snapshot_record(snapshot_id)
            if record is None or record.state is not SnapshotState.PENDING:
                return
            folder = folders.snapshot(snapshot_id)
            try:
                made = self._copy(record, folder, job)
            except Stopped:
                raise
            except Exception as error:  # noqa: BLE001 - a copy nobody foresaw to fail would be begun at every look
                _clear(folder, job)
                made = replace(record, state=SnapshotState.ERROR, error=_words(error))
            folders.write_snapshot_record(folder, made)

    def remove(self, snapshot_id: str) -> Path | None:
        """What is left to be removed."""
        if not is_id(snapshot_id):
            return None
        with (
            speaking(f"the snapshot {snapshot_id} cannot be removed"),
            self._folders.hold(Thing.SNAPSHOT, snapshot_id),
        ):
            return self._folders.throw_away(self._folders.snapshot(snapshot_id))

    def _copy(self, record: SnapshotRecord, folder: Path, job: Job) -> SnapshotRecord:
        _clear(folder, job)
        (folder / _TREE).mkdir(mode=0o700)
        known = KnownFiles(folder / _FILES, create=True)
        contents = ContentsCount()
        volume = self._folders.volume(record.volume_id)
        open_up(volume)  # for good: a home that is closed to its owner is of no use to anybody
        try:
            with (
                opened(volume) as source,
                opened(folder / _TREE) as target,
                self._earlier(record) as earlier,
            ):
                settled = _settle(source)
                copy = TreeCopy(
                    source,
                    target,
                    known,
                    job.tally,
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
        tally = job.tally
        return replace(
            record,
            state=SnapshotState.COMPLETED,
            method=tally.method.value,
            files=tally.files,
            folders=tally.folders,
            left_out=tally.left_out,
            lacks=_lacks(tally),
            notes=tuple(tally.notes),
            contents=contents.total().to_json(),
        )

    @contextlib.contextmanager
    def _earlier(self, record: SnapshotRecord) -> Iterator[Earlier | None]:
        """The volume's newest complete snapshot, kept from being removed meanwhile."""
        with contextlib.ExitStack() as stack:
            yield self._hold_earlier(record, stack)

    def _hold_earlier(self, record: SnapshotRecord, stack: contextlib.ExitStack) -> Earlier | None:
        for snapshot in reversed(_list(self._folders)):
            if snapshot.volume_id != record.volume_id or snapshot.state is not SnapshotState.COMPLETED:
                continue
            try:
                stack.enter_context(self._folders.hold(Thing.SNAPSHOT, snapshot.snapshot_id, shared=True, patience_s=0))
            except Busy:
                continue
            folder = self._folders.snapshot(snapshot.snapshot_id)
            found = self._folders.find_snapshot_record(snapshot.snapshot_id)
            if found is None or found.method == Method.REFLINK or not (folder / _FILES).exists():
                return None
            known = KnownFiles(folder / _FILES)
            stack.callback(known.close)
            return Earlier(stack.enter_context(opened(folder / _TREE)), known)
        return None


def pending_snapshots(folders: VolumeFolders, volume_id: str) -> list[str]:
    return [
        snapshot.snapshot_id
        for snapshot in _list(folders)
        if snapshot.volume_id == volume_id and snapshot.state is SnapshotState.PENDING
    ]


def _list(folders: VolumeFolders) -> list[Snapshot]:
    records = [(snapshot_id, folders.find_snapshot_record(snapshot_id)) for snapshot_id in folders.snapshot_ids()]
    found = [record.snapshot(snapshot_id) for snapshot_id, record in records if record]
    return sorted(found, key=lambda one: (one.created_at, one.snapshot_id))


def _settle(source: int) -> int | None:
    """Before which moment a file must have been touched last so that its ctime tells from now on whether it changed.
    None: this file system does not tell."""
    if kind_of(source) not in _TELL_CHANGES:
        return None
    now = time.time_ns()
    sync_filesystem(source)
    return now - _COARSE_NS


def _lacks(tally: Tally) -> str | None:
    if not tally.unread:
        return None
    named = ", ".join(tally.unread_paths)
    more = ", …" if tally.unread > len(tally.unread_paths) else ""
    return f"{tally.unread} that belong{'s' if tally.unread == 1 else ''} to others and cannot be read: {named}{more}"


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error)
    log.error("disks.snapshot_unforeseen", exc_info=error)
    return f"something went wrong that nobody foresaw ({type(error).__name__}: {error})"


def _clear(folder: Path, job: Job) -> None:
    """Of what an earlier try left behind."""
    remove_folder(folder / _TREE, job.check)
    for name in os.listdir(folder):  # noqa: PTH208
        if name.startswith(_FILES):
            (folder / name).unlink(missing_ok=True)
