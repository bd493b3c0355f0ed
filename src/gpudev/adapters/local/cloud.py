"""This machine as the cloud: volumes and snapshots are folders, and there are no node groups.

It calls the volume store and the snapshot store, which block, in threads. A long job does not belong to its first
caller: it continues when that caller stops waiting, later callers join it, and `close` stops it. After that, as after
a crash, the next call for the same volume or snapshot starts it again.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import structlog

from gpudev.adapters.local.servers.state_folder import StateFolder
from gpudev.adapters.local.volumes.snapshot_store import LocalSnapshotStore, pending_snapshot_ids
from gpudev.adapters.local.volumes.thread_jobs import JobStopped, ThreadJob, translate_errors
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.adapters.local.volumes.volume_layout import (
    LocalSnapshotRecord,
    LocalVolumeRecord,
    VolumeBusy,
    VolumeLayout,
    VolumeOrSnapshot,
)
from gpudev.adapters.local.volumes.volume_store import LocalVolumeStore
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.ports.clock import Clock
from gpudev.ports.cloud import OWNER_TAG, TOKEN_TAG, NodeGroup, Snapshot, SnapshotState, Volume

log = structlog.get_logger(__name__)
_T = TypeVar("_T")
_MAX_THREADS = 4
"""Parallel long jobs. More would not help: they wait for the same device."""
_SNAPSHOT_WAIT_S = 1.0
"""How long the caller that begins a snapshot waits for its completion."""


class LocalCloud:
    name = "local"

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        state = StateFolder(Path(state_dir).expanduser().absolute())
        self._layout = VolumeLayout(state.path / "disks")
        self._volumes = LocalVolumeStore(state, self._layout)
        self._snapshots = LocalSnapshotStore(self._layout)
        self._clock = clock
        self._threads: ThreadPoolExecutor | None = None
        self._jobs: dict[tuple[VolumeOrSnapshot, str], tuple[ThreadJob, asyncio.Task[object]]] = {}
        self._pending: dict[str, set[str]] = {}
        """Incomplete snapshots, by volume. No dev server may write to a volume until its snapshots are complete."""
        self._cleanup_job = ThreadJob()
        self._background_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="disks")
        await asyncio.to_thread(self._prepare)
        self._run_in_background(lambda: self._layout.remove_leftovers(self._cleanup_job.check))

    async def close(self) -> None:
        self._cleanup_job.stopped = True
        for job, _ in self._jobs.values():
            job.stopped = True
        await asyncio.gather(
            *(task for _, task in self._jobs.values()), *self._background_tasks, return_exceptions=True
        )
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    # Reading

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        return []

    async def volumes(self) -> list[Volume]:
        return [volume for volume in await asyncio.to_thread(self._volumes.list_volumes) if volume.owner is not None]

    async def snapshots(self) -> list[Snapshot]:
        # Snapshots first: otherwise a volume that is removed in between would make its snapshot look like an orphan.
        found = await asyncio.to_thread(self._snapshots.list_snapshots)
        owned = {volume.volume_id for volume in await self.volumes()}
        return [snapshot for snapshot in found if OWNER_TAG in snapshot.tags or snapshot.volume_id in owned]

    async def find_volume(self, volume_id: str) -> Volume | None:
        found = await asyncio.to_thread(self._volumes.find_volume, volume_id)
        pending = self._pending.get(volume_id)
        if found is None or not pending:
            return found
        for snapshot_id in pending:
            self._complete_snapshot(snapshot_id)
        return replace(found, busy_reason="its snapshot is still being copied")

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Also starts the job of an incomplete snapshot, if none is running."""
        record = await self.find_snapshot_record(snapshot_id)
        if record is None:
            return None
        if record.state is SnapshotState.PENDING:
            self._complete_snapshot(snapshot_id)
        return record.to_snapshot(snapshot_id)

    async def find_snapshot_record(self, snapshot_id: str) -> LocalSnapshotRecord | None:
        """The record contains how the snapshot was made, what was left out and why it failed."""
        return await asyncio.to_thread(self._snapshots.find_snapshot_record, snapshot_id)

    async def snapshot_contents(self, snapshot_id: str) -> Contents:
        """The contents as recorded when the snapshot was made."""
        record = await self.find_snapshot_record(snapshot_id)
        if record is None or record.state is not SnapshotState.COMPLETED:
            raise ClusterError(f"complete snapshot {snapshot_id} not found")
        return Contents.from_json(dict(record.contents))

    # Changing

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        """Returns when the volume is complete. From a large snapshot that takes long."""
        volume_id = _id_from_token(token)
        desired = LocalVolumeRecord(
            size_gb, self._clock.now(), zone, volume_id, {**tags, TOKEN_TAG: volume_id}, from_snapshot
        )
        key = (VolumeOrSnapshot.VOLUME, volume_id)
        await self._run_job(key, lambda job: self._volumes.ensure_volume(volume_id, desired, job))
        found = await self.find_volume(volume_id)
        if found is None:
            raise Unavailable(f"volume {volume_id} was removed at the same moment")
        return found

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume:
        def grow(record: LocalVolumeRecord) -> LocalVolumeRecord:
            return replace(record, size_gb=max(size_gb, record.size_gb))

        return await asyncio.to_thread(self._volumes.update_volume, volume_id, grow)

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        """Also gives a record to a volume that is older than volume records."""

        def add_tags(record: LocalVolumeRecord) -> LocalVolumeRecord:
            return replace(record, tags={**record.tags, **tags})

        await asyncio.to_thread(self._volumes.update_volume, volume_id, add_tags)

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        snapshot_id = _id_from_token(token)
        desired = LocalSnapshotRecord(volume_id, 0, self._clock.now(), snapshot_id, {**tags, TOKEN_TAG: snapshot_id})
        record = await asyncio.to_thread(self._snapshots.begin_snapshot, snapshot_id, desired)
        if record.state is SnapshotState.PENDING:
            self._pending.setdefault(volume_id, set()).add(snapshot_id)
            # A small one is complete within this time, and the caller need not poll.
            await asyncio.wait({self._complete_snapshot(snapshot_id)}, timeout=_SNAPSHOT_WAIT_S)
            record = await self.find_snapshot_record(snapshot_id) or record
        return record.to_snapshot(snapshot_id)

    async def remove_volume(self, volume_id: str) -> None:
        """The volume is gone when this returns. Its bytes are removed later."""
        try:
            self._remove_later(await asyncio.to_thread(self._volumes.remove_volume, volume_id))
        except VolumeBusy:
            for snapshot_id in await asyncio.to_thread(pending_snapshot_ids, self._layout, volume_id):
                self._complete_snapshot(snapshot_id)
            raise

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """Stops the job of a snapshot that is being made."""
        if running := self._jobs.get((VolumeOrSnapshot.SNAPSHOT, snapshot_id)):
            job, task = running
            job.stopped = True
            await asyncio.wait({task})
        self._clear_pending(snapshot_id)
        self._remove_later(await asyncio.to_thread(self._snapshots.remove_snapshot, snapshot_id))

    # Jobs

    def _complete_snapshot(self, snapshot_id: str) -> "asyncio.Task[object]":
        return self._start_job(
            (VolumeOrSnapshot.SNAPSHOT, snapshot_id), lambda job: self._snapshots.complete_snapshot(snapshot_id, job)
        )

    async def _run_job(self, key: tuple[VolumeOrSnapshot, str], work: Callable[[ThreadJob], object]) -> None:
        await asyncio.shield(self._start_job(key, work))

    def _start_job(
        self, key: tuple[VolumeOrSnapshot, str], work: Callable[[ThreadJob], object]
    ) -> "asyncio.Task[object]":
        if key in self._jobs:
            return self._jobs[key][1]
        job = ThreadJob()
        task: asyncio.Task[object] = asyncio.create_task(self._in_thread(work, job))
        self._jobs[key] = (job, task)
        task.add_done_callback(lambda done: self._job_ended(key, done))
        return task

    def _job_ended(self, key: tuple[VolumeOrSnapshot, str], task: "asyncio.Task[object]") -> None:
        self._jobs.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if (
            key[0] is VolumeOrSnapshot.SNAPSHOT
            and not task.cancelled()
            and not isinstance(error, VolumeBusy | JobStopped)
        ):
            self._clear_pending(key[1])  # complete, failed, or impossible to copy: the volume need not wait for it
        if error is not None and not isinstance(error, VolumeBusy | JobStopped):
            log.warning("volume_job.failed", resource=key[0].value, id=key[1], error=str(error))

    def _clear_pending(self, snapshot_id: str) -> None:
        for volume_id, pending in [*self._pending.items()]:
            pending.discard(snapshot_id)
            if not pending:
                del self._pending[volume_id]

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        if self._threads is None:
            raise Unavailable("the local cloud has not been started")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    # Cleanup

    def _prepare(self) -> None:
        with translate_errors("cannot use the folder of volumes"):
            self._layout.prepare()
            for snapshot in self._snapshots.list_snapshots():
                if snapshot.state is SnapshotState.PENDING:
                    self._pending.setdefault(snapshot.volume_id, set()).add(snapshot.snapshot_id)

    def _remove_later(self, trash: Path | None) -> None:
        if trash is not None:
            self._run_in_background(lambda: remove_folder(trash, self._cleanup_job.check))

    def _run_in_background(self, work: Callable[[], None]) -> None:
        """A cleanup that fails is tried again after the next start."""
        task = asyncio.create_task(self._run_cleanup(work))
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _run_cleanup(self, work: Callable[[], None]) -> None:
        try:
            await self._in_thread(work)
        except (OSError, GpuDevError) as error:
            if not isinstance(error, JobStopped):
                log.warning("volume_cleanup.failed", error=str(error))


def _id_from_token(token: str) -> str:
    """Volumes and snapshots are named after their token, so that no search is needed to find them again."""
    try:
        return str(UUID(token))
    except ValueError as error:
        raise ClusterError(f"invalid token {token[:80]!r} (expected a uuid)") from error
