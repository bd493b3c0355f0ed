"""This machine as the cloud: volumes and snapshots are folders of the state folder, and there are no groups of nodes.

It asks `volumes` and `snapshots`, which block, in threads, so that nobody else waits. Long work belongs to nobody who
asks for it: it goes on when they stop waiting, is joined by whoever asks again, and ends with `close`. Then, as after a
crash, it is begun again when it is asked for or looked at the next time.
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
from gpudev.adapters.local.volume_records import SnapshotRecord, VolumeRecord
from gpudev.adapters.local.volumes.contents import MOST_ENTRIES
from gpudev.adapters.local.volumes.snapshot_store import Snapshots, pending_snapshots
from gpudev.adapters.local.volumes.thread_jobs import Job, Stopped, speaking
from gpudev.adapters.local.volumes.tree_copy import Tally
from gpudev.adapters.local.volumes.tree_removal import remove_folder
from gpudev.adapters.local.volumes.volume_layout import Busy, Thing, VolumeFolders
from gpudev.adapters.local.volumes.volume_store import Volumes
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.ports.clock import Clock
from gpudev.ports.cloud import OWNER_TAG, TOKEN_TAG, NodeGroup, Snapshot, SnapshotState, Volume

log = structlog.get_logger(__name__)
_T = TypeVar("_T")
_AT_ONCE = 4
"""Long works; they wait for the same device anyway."""
_SHORTLY_S = 1.0
"""How long whoever begins a snapshot waits for it."""


class LocalCloud:
    name = "local"

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        state = StateFolder(Path(state_dir).expanduser().absolute())
        self._folders = VolumeFolders(state.path / "disks")
        self._volumes = Volumes(state, self._folders)
        self._snapshots = Snapshots(self._folders)
        self._clock = clock
        self._threads: ThreadPoolExecutor | None = None
        self._jobs: dict[tuple[Thing, str], tuple[Job, asyncio.Task[object]]] = {}
        self._pending: dict[str, set[str]] = {}
        """By volume, snapshots that are not complete: nobody may write to it until they are."""
        self._cleaning = Job()
        self._under_way: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="disks")
        await asyncio.to_thread(self._prepare)
        self._later(lambda: self._folders.clean(self._cleaning.check))

    async def close(self) -> None:
        self._cleaning.stopped = True
        for job, _ in self._jobs.values():
            job.stopped = True
        await asyncio.gather(*(task for _, task in self._jobs.values()), *self._under_way, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    # What is seen

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        return []

    async def volumes(self) -> list[Volume]:
        return [volume for volume in await asyncio.to_thread(self._volumes.list) if volume.owner is not None]

    async def snapshots(self) -> list[Snapshot]:
        # Snapshots first: a volume that goes meanwhile cannot leave one behind that looks like nobody's.
        found = await asyncio.to_thread(self._snapshots.list)
        owned = {volume.volume_id for volume in await self.volumes()}
        return [snapshot for snapshot in found if OWNER_TAG in snapshot.tags or snapshot.volume_id in owned]

    async def find_volume(self, volume_id: str) -> Volume | None:
        found = await asyncio.to_thread(self._volumes.find, volume_id)
        pending = self._pending.get(volume_id)
        if found is None or not pending:
            return found
        for snapshot_id in pending:
            self._complete(snapshot_id)
        return replace(found, busy="its snapshot is still being copied")

    async def is_detached(self, volume_id: str) -> bool:
        found = await self.find_volume(volume_id)
        return found is None or not found.attached_to

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        """One that is not complete is worked on from now on, if it was not."""
        record = await self.find_snapshot_record(snapshot_id)
        if record is None:
            return None
        if record.state is SnapshotState.PENDING:
            self._complete(snapshot_id)
        return record.snapshot(snapshot_id)

    async def find_snapshot_record(self, snapshot_id: str) -> SnapshotRecord | None:
        """With how it was made, what was left out and why it failed."""
        return await asyncio.to_thread(self._snapshots.find_record, snapshot_id)

    async def volume_contents(self, volume_id: str, most_entries: int = MOST_ENTRIES) -> Contents:
        """Of a volume as it is now."""
        return await self._in_thread(self._volumes.contents, volume_id, self._cleaning, most_entries)

    async def snapshot_contents(self, snapshot_id: str) -> Contents:
        """As kept when it was made."""
        record = await self.find_snapshot_record(snapshot_id)
        if record is None or record.state is not SnapshotState.COMPLETED:
            raise ClusterError(f"there is no complete snapshot {snapshot_id}")
        return Contents.from_json(dict(record.contents))

    def progress(self, token: str) -> Tally | None:
        """Of what is being made by this token here; None: nothing is."""
        jobs = (self._jobs.get((thing, token)) for thing in Thing)
        return next((job.tally for job, _ in filter(None, jobs)), None)

    # What is done

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        """Made when this returns, which takes long from a large snapshot: see `progress`."""
        volume_id = _id_from(token)
        wanted = VolumeRecord(
            size_gb, self._clock.now(), zone, volume_id, {**tags, TOKEN_TAG: volume_id}, from_snapshot
        )
        key = (Thing.VOLUME, volume_id)
        await self._join(key, lambda job: self._volumes.ensure(volume_id, wanted, job))
        found = await self.find_volume(volume_id)
        if found is None:
            raise Unavailable(f"the disk {volume_id} was removed at the same moment")
        return found

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume:
        def grown(record: VolumeRecord) -> VolumeRecord:
            return replace(record, size_gb=max(size_gb, record.size_gb))

        return await asyncio.to_thread(self._volumes.change, volume_id, grown)

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        """A disk from before there were records gets one by this."""

        def tagged(record: VolumeRecord) -> VolumeRecord:
            return replace(record, tags={**record.tags, **tags})

        await asyncio.to_thread(self._volumes.change, volume_id, tagged)

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        snapshot_id = _id_from(token)
        wanted = SnapshotRecord(volume_id, 0, self._clock.now(), snapshot_id, {**tags, TOKEN_TAG: snapshot_id})
        record = await asyncio.to_thread(self._snapshots.begin, snapshot_id, wanted)
        if record.state is SnapshotState.PENDING:
            self._pending.setdefault(volume_id, set()).add(snapshot_id)
            # A small one is complete at once, and then nobody has to look again.
            await asyncio.wait({self._complete(snapshot_id)}, timeout=_SHORTLY_S)
            record = await self.find_snapshot_record(snapshot_id) or record
        return record.snapshot(snapshot_id)

    async def remove_volume(self, volume_id: str) -> None:
        """Gone from its place when this returns; its bytes follow."""
        try:
            self._remove_later(await asyncio.to_thread(self._volumes.remove, volume_id))
        except Busy:
            for snapshot_id in await asyncio.to_thread(pending_snapshots, self._folders, volume_id):
                self._complete(snapshot_id)
            raise

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """One that is being made is broken off."""
        if running := self._jobs.get((Thing.SNAPSHOT, snapshot_id)):
            job, task = running
            job.stopped = True
            await asyncio.wait({task})
        self._forget(snapshot_id)
        self._remove_later(await asyncio.to_thread(self._snapshots.remove, snapshot_id))

    # Working

    def _complete(self, snapshot_id: str) -> "asyncio.Task[object]":
        return self._begin((Thing.SNAPSHOT, snapshot_id), lambda job: self._snapshots.complete(snapshot_id, job))

    async def _join(self, key: tuple[Thing, str], work: Callable[[Job], object]) -> None:
        await asyncio.shield(self._begin(key, work))

    def _begin(self, key: tuple[Thing, str], work: Callable[[Job], object]) -> "asyncio.Task[object]":
        if key in self._jobs:
            return self._jobs[key][1]
        job = Job()
        task: asyncio.Task[object] = asyncio.create_task(self._in_thread(work, job))
        self._jobs[key] = (job, task)
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: tuple[Thing, str], task: "asyncio.Task[object]") -> None:
        self._jobs.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if key[0] is Thing.SNAPSHOT and not task.cancelled() and not isinstance(error, Busy | Stopped):
            self._forget(key[1])  # complete, failed, or beyond copying: nobody waits for it any longer
        if error is not None and not isinstance(error, Busy | Stopped):
            log.warning("disks.work_failed", thing=key[0].value, id=key[1], error=str(error))

    def _forget(self, snapshot_id: str) -> None:
        for volume_id, pending in [*self._pending.items()]:
            pending.discard(snapshot_id)
            if not pending:
                del self._pending[volume_id]

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        if self._threads is None:
            raise Unavailable("the local cloud has not been started")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    # Cleaning

    def _prepare(self) -> None:
        with speaking("the folder of disks cannot be used"):
            self._folders.prepare()
            for snapshot in self._snapshots.list():
                if snapshot.state is SnapshotState.PENDING:
                    self._pending.setdefault(snapshot.volume_id, set()).add(snapshot.snapshot_id)

    def _remove_later(self, rubbish: Path | None) -> None:
        if rubbish is not None:
            self._later(lambda: remove_folder(rubbish, self._cleaning.check))

    def _later(self, work: Callable[[], None]) -> None:
        """What does not succeed is tried again after the next start."""
        task = asyncio.create_task(self._clean_up(work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _clean_up(self, work: Callable[[], None]) -> None:
        try:
            await self._in_thread(work)
        except (OSError, GpuDevError) as error:
            if not isinstance(error, Stopped):
                log.warning("disks.cleaning_failed", error=str(error))


def _id_from(token: str) -> str:
    """What is made is named after its token: there is nothing to look through to find it again."""
    try:
        return str(UUID(token))
    except ValueError as error:
        raise ClusterError(f"{token[:80]!r} is no token: it must be a uuid") from error
