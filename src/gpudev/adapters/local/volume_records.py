"""What is written down about a volume and a snapshot beside their folders: values ↔ JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from gpudev.ports.cloud import Snapshot, SnapshotState, Volume


class InvalidVolumeRecord(ValueError):
    """It was not written by us, or not by this version."""


@dataclass(frozen=True, slots=True)
class LocalVolumeRecord:
    size_gb: int
    """As told: a folder takes what its file system has."""
    created_at: datetime
    zone: str | None
    token: str | None
    """None: it was there before there were records."""
    tags: Mapping[str, str]
    from_snapshot: str | None = None
    method: str | None = None
    """How its bytes came from the snapshot."""

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
    """Once complete: how it was made, see `copying.Method`."""
    files: int = 0
    folders: int = 0
    size_bytes: int = 0
    left_out: int = 0
    lacks: str | None = None
    """What holds something and could not be read, in words: it is on the volume and nowhere else."""
    notes: tuple[str, ...] = ()
    """What could not be kept as it was; of many, the first."""
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
