"""Volumes as folders. Each change is atomic and can be repeated after a crash.

It removes only the volumes that a caller names. Everything here blocks and runs in threads. Long jobs call `check`
often; an exception from it stops them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpudev.adapters.local.servers.state_folder import InvalidServerRecord, StateFolder
from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.filesystem import sync_filesystem
from gpudev.adapters.local.volumes.snapshot_store import pending_snapshot_ids
from gpudev.adapters.local.volumes.thread_jobs import JobStopped, ThreadJob, open_directory, translate_errors
from gpudev.adapters.local.volumes.tree_copy import TreeCopy
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.adapters.local.volumes.volume_layout import (
    LocalVolumeRecord,
    VolumeBusy,
    VolumeLayout,
    VolumeOrSnapshot,
    is_id,
)
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import SnapshotState, Volume
from gpudev.ports.cluster import ServerSpec

SKELETON = Path("/etc/skel")


class LocalVolumeStore:
    def __init__(self, state: StateFolder, layout: VolumeLayout) -> None:
        self._state = state
        self._layout = layout

    # Reading

    def list_volumes(self) -> list[Volume]:
        """All volumes, the oldest first."""
        with translate_errors("cannot list the volumes"):
            holders = self._holders()
            found = [self._find_attached_volume(volume_id, holders) for volume_id in self._layout.volume_ids()]
        return sorted((volume for volume in found if volume), key=lambda volume: (volume.created_at, volume.volume_id))

    def find_volume(self, volume_id: str) -> Volume | None:
        if not is_id(volume_id):
            return None
        with translate_errors(f"cannot read volume {volume_id}"):
            return self._find_attached_volume(volume_id, self._holders())

    def _find_attached_volume(self, volume_id: str, holders: Mapping[str, tuple[str, ...]]) -> Volume | None:
        record = self._find_record(volume_id)
        return None if record is None else record.to_volume(volume_id, holders.get(volume_id, ()))

    def _find_record(self, volume_id: str) -> LocalVolumeRecord | None:
        """The folder decides whether a volume exists. One without a record is older than volume records."""
        if not is_id(volume_id):
            return None
        try:
            info = self._layout.volume_path(volume_id).stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        found = self._layout.find_volume_record(volume_id)
        return found or LocalVolumeRecord(0, datetime.fromtimestamp(int(info.st_mtime), UTC), None, None, {})

    def _holders(self) -> dict[str, tuple[str, ...]]:
        """The nodes that use each volume: those of dev servers that are not confirmed gone."""
        holders: dict[str, set[str]] = {}
        try:
            servers = self._state.list_servers()
        except FileNotFoundError:
            return {}
        for reservation_id in servers:
            try:
                record = self._state.server(reservation_id).find_record()
            except InvalidServerRecord as error:
                raise Unavailable(f"cannot read the record of dev server {reservation_id}: {error}") from error
            volume_id = None if record is None else home_volume_id(record.spec)
            if record is not None and volume_id is not None:
                nodes = {share.node for share in record.spec.shares}
                holders.setdefault(volume_id, set()).update(nodes)
        return {volume_id: tuple(sorted(nodes)) for volume_id, nodes in holders.items()}

    # Changing

    def ensure_volume(self, volume_id: str, desired: LocalVolumeRecord, job: ThreadJob) -> Volume:
        with (
            translate_errors(f"cannot create volume {volume_id}"),
            self._layout.lock(VolumeOrSnapshot.VOLUME, volume_id),
        ):
            found = self._find_attached_volume(volume_id, {})
            if found is not None:
                return found
            try:
                return self._create_volume(volume_id, desired, job)
            except JobStopped:
                raise
            except Exception:
                # Often the device is full, and the volume may never be requested again: do not keep half of it.
                with contextlib.suppress(OSError, JobStopped):
                    self._layout.remove_drafts(VolumeOrSnapshot.VOLUME, volume_id, job.check)
                raise

    def update_volume(self, volume_id: str, change: Callable[[LocalVolumeRecord], LocalVolumeRecord]) -> Volume:
        with translate_errors(f"cannot change volume {volume_id}"):
            if not is_id(volume_id):
                raise volume_not_found(volume_id)
            with self._layout.lock(VolumeOrSnapshot.VOLUME, volume_id):
                record = self._find_record(volume_id)
                if record is None:
                    raise volume_not_found(volume_id)
                changed = change(record)
                if changed != record:
                    self._layout.write_volume_record(volume_id, changed)
                return changed.to_volume(volume_id, self._holders().get(volume_id, ()))

    def remove_volume(self, volume_id: str) -> Path | None:
        """Move it to the trash. Returns the folder that is left to be removed; None: there is none.

        Raises VolumeBusy while a snapshot of it is being made.
        """
        if not is_id(volume_id):
            return None
        with (
            translate_errors(f"cannot remove volume {volume_id}"),
            self._layout.lock(VolumeOrSnapshot.VOLUME, volume_id),
        ):
            if self._find_record(volume_id) is not None:
                if holders := self._holders().get(volume_id):
                    raise ClusterError(f"volume {volume_id} is in use on {', '.join(holders)}")
                if pending_snapshot_ids(self._layout, volume_id):
                    raise VolumeBusy(f"a snapshot of volume {volume_id} is not complete yet")
            trash = self._layout.move_to_trash(self._layout.volume_path(volume_id))
            self._layout.remove_volume_record(volume_id)
            return trash

    def _create_volume(self, volume_id: str, desired: LocalVolumeRecord, job: ThreadJob) -> Volume:
        draft = self._layout.draft_path(VolumeOrSnapshot.VOLUME, volume_id)
        remove_folder(draft, job.check)
        draft.mkdir(mode=0o700)
        if desired.from_snapshot is None:
            self._copy_skeleton(draft, job)
        else:
            self._copy_snapshot(desired.from_snapshot, draft, job)
            desired = replace(desired, method=job.progress.method.value)
        self._layout.write_volume_record(volume_id, desired)
        self._layout.move_into_place(draft, self._layout.volume_path(volume_id))
        return desired.to_volume(volume_id, ())

    def _copy_skeleton(self, draft: Path, job: ThreadJob) -> None:
        with open_directory(draft) as target, self._copied_files(draft) as copied_files:
            if SKELETON.is_dir():
                with open_directory(SKELETON) as source:
                    TreeCopy(source, target, copied_files, job.progress, check=job.check).run()
            os.fchmod(target, 0o700)
            sync_filesystem(target)

    def _copy_snapshot(self, snapshot_id: str, draft: Path, job: ThreadJob) -> None:
        if not is_id(snapshot_id):
            raise ClusterError(f"snapshot {snapshot_id} not found")
        with self._layout.lock(VolumeOrSnapshot.SNAPSHOT, snapshot_id, shared=True):
            record = self._layout.find_snapshot_record(snapshot_id)
            if record is None:
                raise ClusterError(f"snapshot {snapshot_id} not found")
            if record.state is not SnapshotState.COMPLETED:
                raise ClusterError(f"snapshot {snapshot_id} is not complete")
            with (
                open_directory(self._layout.snapshot_path(snapshot_id) / "tree") as source,
                open_directory(draft) as target,
                self._copied_files(draft) as copied_files,
            ):
                TreeCopy(source, target, copied_files, job.progress, check=job.check).run()
                sync_filesystem(target)

    @contextlib.contextmanager
    def _copied_files(self, draft: Path) -> Iterator[CopiedFileTable]:
        """A table for this copy only, for files with several names."""
        path = draft.with_name(f"{draft.name}.files")
        path.unlink(missing_ok=True)
        table = CopiedFileTable(path, create=True)
        try:
            yield table
        finally:
            table.close()
            path.unlink()


def home_volume_id(spec: ServerSpec) -> str | None:
    """The volume that is its home. None: scratch space. Without a cloud, and formerly, a volume has its disk's id."""
    if spec.volume is not None:
        return spec.volume.volume_id
    return None if spec.disk_id is None else str(spec.disk_id)


def volume_not_found(volume_id: str) -> ClusterError:
    return ClusterError(f"volume {volume_id} not found")
