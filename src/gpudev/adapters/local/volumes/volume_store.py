"""Volumes as folders: each change whole or not at all, and safe to ask for again after a crash.

It removes only what it is told to. Everything here blocks and runs in threads; `check` is called often and breaks long
work off by raising.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpudev.adapters.local.records import BadRecord
from gpudev.adapters.local.servers.state_folder import StateFolder
from gpudev.adapters.local.volume_records import VolumeRecord
from gpudev.adapters.local.volumes.contents import MOST_ENTRIES, list_contents
from gpudev.adapters.local.volumes.copied_files import KnownFiles
from gpudev.adapters.local.volumes.filesystem import sync_filesystem
from gpudev.adapters.local.volumes.snapshot_store import pending_snapshots
from gpudev.adapters.local.volumes.thread_jobs import Job, Stopped, opened, speaking
from gpudev.adapters.local.volumes.tree_copy import TreeCopy
from gpudev.adapters.local.volumes.tree_removal import remove_folder
from gpudev.adapters.local.volumes.volume_layout import Busy, Thing, VolumeFolders, is_id
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import SnapshotState, Volume
from gpudev.ports.cluster import ServerSpec

SKELETON = Path("/etc/skel")


class Volumes:
    def __init__(self, state: StateFolder, folders: VolumeFolders) -> None:
        self._state = state
        self._folders = folders

    # Looking

    def list(self) -> list[Volume]:
        """All, the oldest first."""
        with speaking("the disks cannot be listed"):
            holders = self._holders()
            found = [self._find(volume_id, holders) for volume_id in self._folders.volume_ids()]
        return sorted((volume for volume in found if volume), key=lambda one: (one.created_at, one.volume_id))

    def find(self, volume_id: str) -> Volume | None:
        if not is_id(volume_id):
            return None
        with speaking(f"the disk {volume_id} cannot be looked at"):
            return self._find(volume_id, self._holders())

    def contents(self, volume_id: str, job: Job, most_entries: int = MOST_ENTRIES) -> Contents:
        """Of a volume as it is now."""
        with speaking(f"the disk {volume_id} cannot be looked at"):
            if not is_id(volume_id):
                raise no_volume(volume_id)
            try:
                with opened(self._folders.volume(volume_id)) as top:
                    return list_contents(top, most_entries, job.check)
            except FileNotFoundError:
                raise no_volume(volume_id) from None

    def _find(self, volume_id: str, holders: Mapping[str, tuple[str, ...]]) -> Volume | None:
        record = self._find_record(volume_id)
        return None if record is None else record.volume(volume_id, holders.get(volume_id, ()))

    def _find_record(self, volume_id: str) -> VolumeRecord | None:
        """The folder decides whether there is a volume. One without a record was there before records were."""
        if not is_id(volume_id):
            return None
        try:
            stat = self._folders.volume(volume_id).stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        found = self._folders.find_volume_record(volume_id)
        return found or VolumeRecord(0, datetime.fromtimestamp(int(stat.st_mtime), UTC), None, None, {})

    def _holders(self) -> dict[str, tuple[str, ...]]:
        """Which nodes have which volume: those of dev servers that are not confirmed gone."""
        holders: dict[str, set[str]] = {}
        try:
            servers = self._state.list_servers()
        except FileNotFoundError:
            return {}
        for reservation_id in servers:
            try:
                record = self._state.server(reservation_id).find_record()
            except BadRecord as error:
                raise Unavailable(f"which disk {reservation_id} has cannot be read: {error}") from error
            volume_id = None if record is None else volume_of(record.spec)
            if record is not None and volume_id is not None:
                nodes = {share.node for share in record.spec.shares}
                holders.setdefault(volume_id, set()).update(nodes)
        return {volume_id: tuple(sorted(nodes)) for volume_id, nodes in holders.items()}

    # Volumes

    def ensure(self, volume_id: str, wanted: VolumeRecord, job: Job) -> Volume:
        with speaking(f"the disk {volume_id} cannot be made"), self._folders.hold(Thing.VOLUME, volume_id):
            found = self._find(volume_id, {})
            if found is not None:
                return found
            try:
                return self._make(volume_id, wanted, job)
            except Stopped:
                raise
            except Exception:
                # Often there is no room, and nobody may ask for it again: what is half made would keep it taken.
                with contextlib.suppress(OSError, Stopped):
                    self._folders.remove_drafts(Thing.VOLUME, volume_id, job.check)
                raise

    def change(self, volume_id: str, change: Callable[[VolumeRecord], VolumeRecord]) -> Volume:
        with speaking(f"the disk {volume_id} cannot be changed"):
            if not is_id(volume_id):
                raise no_volume(volume_id)
            with self._folders.hold(Thing.VOLUME, volume_id):
                record = self._find_record(volume_id)
                if record is None:
                    raise no_volume(volume_id)
                changed = change(record)
                if changed != record:
                    self._folders.write_volume_record(volume_id, changed)
                return changed.volume(volume_id, self._holders().get(volume_id, ()))

    def remove(self, volume_id: str) -> Path | None:
        """What is left to be removed. Raises Busy while a snapshot of it is being made."""
        if not is_id(volume_id):
            return None
        with speaking(f"the disk {volume_id} cannot be removed"), self._folders.hold(Thing.VOLUME, volume_id):
            if self._find_record(volume_id) is not None:
                if holders := self._holders().get(volume_id):
                    raise ClusterError(f"the disk {volume_id} is in use on {', '.join(holders)}")
                if pending_snapshots(self._folders, volume_id):
                    raise Busy(f"a snapshot of the disk {volume_id} is not complete yet")
            rubbish = self._folders.throw_away(self._folders.volume(volume_id))
            self._folders.remove_volume_record(volume_id)
            return rubbish

    def _make(self, volume_id: str, wanted: VolumeRecord, job: Job) -> Volume:
        draft = self._folders.draft(Thing.VOLUME, volume_id)
        remove_folder(draft, job.check)
        draft.mkdir(mode=0o700)
        if wanted.from_snapshot is None:
            self._copy_skeleton(draft, job)
        else:
            self._copy_snapshot(wanted.from_snapshot, draft, job)
            wanted = replace(wanted, method=job.tally.method.value)
        self._folders.write_volume_record(volume_id, wanted)
        self._folders.put(draft, self._folders.volume(volume_id))
        return wanted.volume(volume_id, ())

    def _copy_skeleton(self, draft: Path, job: Job) -> None:
        with opened(draft) as target, self._known(draft) as known:
            if SKELETON.is_dir():
                with opened(SKELETON) as source:
                    TreeCopy(source, target, known, job.tally, check=job.check).run()
            os.fchmod(target, 0o700)
            sync_filesystem(target)

    def _copy_snapshot(self, snapshot_id: str, draft: Path, job: Job) -> None:
        if not is_id(snapshot_id):
            raise ClusterError(f"there is no snapshot {snapshot_id}")
        with self._folders.hold(Thing.SNAPSHOT, snapshot_id, shared=True):
            record = self._folders.find_snapshot_record(snapshot_id)
            if record is None:
                raise ClusterError(f"there is no snapshot {snapshot_id}")
            if record.state is not SnapshotState.COMPLETED:
                raise ClusterError(f"the snapshot {snapshot_id} is not complete")
            with (
                opened(self._folders.snapshot(snapshot_id) / "tree") as source,
                opened(draft) as target,
                self._known(draft) as known,
            ):
                TreeCopy(source, target, known, job.tally, check=job.check).run()
                sync_filesystem(target)

    @contextlib.contextmanager
    def _known(self, draft: Path) -> Iterator[KnownFiles]:
        """For this one copy: what has several names."""
        path = draft.with_name(f"{draft.name}.files")
        path.unlink(missing_ok=True)
        known = KnownFiles(path, create=True)
        try:
            yield known
        finally:
            known.close()
            path.unlink()


def volume_of(spec: ServerSpec) -> str | None:
    """The volume that is its home. Without a cloud, and before there were volumes, a disk's folder has its own id."""
    if spec.volume is not None:
        return spec.volume.volume_id
    return None if spec.disk_id is None else str(spec.disk_id)


def no_volume(volume_id: str) -> ClusterError:
    return ClusterError(f"there is no disk {volume_id}")
