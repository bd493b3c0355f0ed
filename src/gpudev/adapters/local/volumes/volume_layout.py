"""Layout of volumes and snapshots on disk: paths, records as JSON, drafts, trash and locks.

Below `disks/`, so that all of it is on one file system::

    <volume id>/                 the volume: a dev server's /home/dev. Those older than volume records have none.
    .volumes/<volume id>.json    its record: written before the volume exists, removed after it
    .snapshots/<snapshot id>/    record.json, which shows whether tree/ is complete; files: the table of copied files
    .drafts/<kind>-<id>          a volume or a snapshot that is being made
    .trash/                      folders that are being removed
    .locks/<kind>-<id>           held by the process that changes the volume or snapshot
    .made                        marks this folder as ours; `disks.made` beside `disks/` shows that such a folder exists

A volume or snapshot gets its name only when it is complete. Users may pass through `disks/` itself, never through the
names that begin with a dot. Everything here blocks.
"""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

from gpudev.adapters.atomic_write import write_atomically
from gpudev.adapters.local.volumes.filesystem import sync_folder
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.domain.errors import Unavailable
from gpudev.ports.cloud import Snapshot, SnapshotState, Volume


class InvalidVolumeRecord(ValueError):
    """Another program or another version wrote it."""


@dataclass(frozen=True, slots=True)
class LocalVolumeRecord:
    size_gb: int
    """As requested. It limits nothing: a folder may use all of its file system."""
    created_at: datetime
    zone: str | None
    token: str | None
    """None: it is older than volume records."""
    tags: Mapping[str, str]
    from_snapshot: str | None = None
    method: str | None = None
    """How it was copied from the snapshot (a `CopyMethod`). None: it was not."""

    def to_volume(self, volume_id: str, attached_to: tuple[str, ...]) -> Volume:
        return Volume(volume_id, self.size_gb, self.created_at, self.zone, attached_to, dict(self.tags))

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "LocalVolumeRecord":
        try:
            data = _from_json(text)
            return cls(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidVolumeRecord(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class LocalSnapshotRecord:
    volume_id: str
    size_gb: int
    created_at: datetime
    token: str
    tags: Mapping[str, str]
    state: SnapshotState = SnapshotState.PENDING
    method: str | None = None
    """How it was made (a `CopyMethod`). None: it is not complete."""
    files: int = 0
    folders: int = 0
    size_bytes: int = 0
    left_out: int = 0
    lacks: str | None = None
    """What could not be read, as text for people: it exists on the volume only. None: nothing is missing."""
    notes: tuple[str, ...] = ()
    """What the copy lacks; the first notes only."""
    error: str | None = None
    contents: Mapping[str, Any] = field(default_factory=dict)

    def to_snapshot(self, snapshot_id: str) -> Snapshot:
        return Snapshot(
            snapshot_id,
            self.volume_id,
            self.state,
            self.created_at,
            self.size_gb,
            dict(self.tags),
            self.error,
            self.lacks,
        )

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "LocalSnapshotRecord":
        try:
            data = _from_json(text)
            return cls(**{**data, "state": SnapshotState(data["state"]), "notes": tuple(data["notes"])})
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidVolumeRecord(f"{type(error).__name__}: {error}") from error


def _to_json(record: LocalVolumeRecord | LocalSnapshotRecord) -> str:
    return json.dumps({**asdict(record), "created_at": record.created_at.isoformat()}, indent=1)


def _from_json(text: str) -> dict[str, Any]:
    data = json.loads(text)
    created_at = datetime.fromisoformat(data["created_at"])
    if created_at.utcoffset() is None:
        raise ValueError("created_at has no time zone")
    return {**data, "created_at": created_at}


# Paths, drafts and locks

_ID_LENGTH = 36


class VolumeBusy(Unavailable):
    """This process or another one works on it."""


def is_id(text: str) -> bool:
    """Ids are uuids in canonical form. Nothing else may become part of a path."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


class VolumeOrSnapshot(StrEnum):
    """A token may name one of each."""

    VOLUME = "volume"
    SNAPSHOT = "snapshot"


class VolumeLayout:
    def __init__(self, disks: Path) -> None:
        self.disks = disks
        self.records = disks / ".volumes"
        self.snapshots = disks / ".snapshots"
        self.drafts = disks / ".drafts"
        self.trash = disks / ".trash"
        self.locks = disks / ".locks"
        self.inner_marker = disks / ".made"
        self.outer_marker = disks.with_name(f"{disks.name}.made")

    def prepare(self) -> None:
        """Create the folders.

        Raises Unavailable when this is not the same folder as before: all volumes and snapshots would seem gone, and
        those made now would be gone later.
        """
        if self.outer_marker.exists() and not self.inner_marker.exists():
            raise Unavailable(
                f"disks not found in {self.disks}: is its file system mounted? "
                f"(if they are lost, remove {self.outer_marker})"
            )
        self.disks.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.records, self.snapshots, self.drafts, self.trash, self.locks):
            path.mkdir(mode=0o700, exist_ok=True)
        for marker in (self.inner_marker, self.outer_marker):  # in this order
            marker.touch(mode=0o600)
            sync_folder(marker.parent)

    def path_of(self, resource: VolumeOrSnapshot, resource_id: str) -> Path:
        return self.volume_path(resource_id) if resource is VolumeOrSnapshot.VOLUME else self.snapshot_path(resource_id)

    # Volumes

    def volume_path(self, volume_id: str) -> Path:
        return self.disks / volume_id

    def volume_ids(self) -> list[str]:
        return sorted(name for name in os.listdir(self.disks) if is_id(name))  # noqa: PTH208 - half the time

    def find_volume_record(self, volume_id: str) -> LocalVolumeRecord | None:
        """Raises InvalidVolumeRecord when a record exists but cannot be read."""
        text = _read_record(self._volume_record_path(volume_id))
        return None if text is None else LocalVolumeRecord.from_json(text)

    def write_volume_record(self, volume_id: str, record: LocalVolumeRecord) -> None:
        self._write_record(self._volume_record_path(volume_id), record.to_json())

    def remove_volume_record(self, volume_id: str) -> None:
        self._volume_record_path(volume_id).unlink(missing_ok=True)
        sync_folder(self.records)

    def _volume_record_path(self, volume_id: str) -> Path:
        return self.records / f"{volume_id}.json"

    # Snapshots

    def snapshot_path(self, snapshot_id: str) -> Path:
        return self.snapshots / snapshot_id

    def snapshot_ids(self) -> list[str]:
        return sorted(name for name in os.listdir(self.snapshots) if is_id(name))  # noqa: PTH208

    def find_snapshot_record(self, snapshot_id: str) -> LocalSnapshotRecord | None:
        text = _read_record(self.snapshot_path(snapshot_id) / "record.json")
        return None if text is None else LocalSnapshotRecord.from_json(text)

    def write_snapshot_record(self, folder: Path, record: LocalSnapshotRecord) -> None:
        self._write_record(folder / "record.json", record.to_json())

    def _write_record(self, path: Path, text: str) -> None:
        """Also removes drafts of it that a killed process left behind."""
        for draft in path.parent.glob(f"{path.name}.*.new"):
            draft.unlink(missing_ok=True)
        write_atomically(path, text, durable=True)
        sync_folder(path.parent)

    # Drafts and trash

    def draft_path(self, resource: VolumeOrSnapshot, resource_id: str) -> Path:
        return self.drafts / f"{resource}-{resource_id}"

    def list_drafts(self) -> list[tuple[VolumeOrSnapshot, str]]:
        names = [name.split("-", 1) for name in sorted(os.listdir(self.drafts))]  # noqa: PTH208
        return [(VolumeOrSnapshot(kind), resource_id[:_ID_LENGTH]) for kind, resource_id in names]

    def remove_drafts(
        self, resource: VolumeOrSnapshot, resource_id: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Remove the draft and its files."""
        for path in self.drafts.glob(f"{resource}-{resource_id}*"):
            remove_folder(path, check)

    def move_into_place(self, draft: Path, place: Path) -> None:
        """Give a complete draft its name. Its bytes are on the device already."""
        _rename(draft, place)
        sync_folder(place.parent)
        sync_folder(draft.parent)

    def move_to_trash(self, path: Path) -> Path | None:
        """Move a folder to the trash. None: it did not exist."""
        target = self.trash / f"{path.name}.{secrets.token_hex(4)}"
        try:
            _rename(path, target)
        except FileNotFoundError:
            return None
        sync_folder(self.trash)
        sync_folder(path.parent)
        return target

    def remove_leftovers(self, check: Callable[[], None]) -> None:
        """Remove what interrupted jobs left behind. What running jobs use is locked."""
        for path in sorted(self.trash.iterdir()):
            remove_folder(path, check)
        for resource, resource_id in self.list_drafts():
            with contextlib.suppress(VolumeBusy), self.lock(resource, resource_id, timeout_s=0):
                self.remove_drafts(resource, resource_id, check)
        for path in sorted(self.records.iterdir()):
            volume_id = path.name[:_ID_LENGTH]
            with contextlib.suppress(VolumeBusy), self.lock(VolumeOrSnapshot.VOLUME, volume_id, timeout_s=0):
                if path.suffix != ".json" or not self.volume_path(volume_id).exists():
                    path.unlink(missing_ok=True)
        for path in sorted(self.locks.iterdir()):
            kind, _, resource_id = path.name.partition("-")
            if not self.path_of(VolumeOrSnapshot(kind), resource_id).exists():
                with contextlib.suppress(VolumeBusy), self.lock(VolumeOrSnapshot(kind), resource_id, timeout_s=0):
                    pass  # releasing the lock removes its file

    # Locks

    @contextlib.contextmanager
    def lock(
        self, resource: VolumeOrSnapshot, resource_id: str, *, shared: bool = False, timeout_s: float = 5.0
    ) -> Iterator[None]:
        """Raises VolumeBusy when another holds it longer than `timeout_s`."""
        path = self.locks / f"{resource}-{resource_id}"
        fd = _acquire_lock(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, time.monotonic() + timeout_s)
        try:
            yield
        finally:
            if not shared and not self.path_of(resource, resource_id).exists():
                path.unlink(missing_ok=True)  # others who wait for it notice
            os.close(fd)


def _acquire_lock(path: Path, kind: int, deadline: float) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:  # otherwise its last holder removed it while we opened it
                return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                raise VolumeBusy(f"{path.name.replace('-', ' ', 1)} is in use by another operation") from None
            time.sleep(0.01)
        os.close(fd)


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except PermissionError:
        # A folder can be moved only when its owner may write to it.
        mode = source.stat(follow_symlinks=False).st_mode & 0o7777
        source.chmod(0o700)
        source.rename(target)
        target.chmod(mode)


def _read_record(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
