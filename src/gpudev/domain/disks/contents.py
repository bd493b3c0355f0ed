"""Contents of a disk: totals, and the entries nearest to the top."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class DiskEntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DiskEntry:
    path: str
    kind: DiskEntryKind
    size: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Contents:
    files: int
    """Everything except folders."""
    folders: int
    size_bytes: int
    """The sum of file sizes; a file with two links counts twice."""
    entries: tuple[DiskEntry, ...]
    """The entries nearest to the top, by depth, then by name."""
    is_counted: bool = True
    """False: some entries could not be read, or not in time, and the totals are too low."""

    @property
    def is_complete(self) -> bool:
        return self.is_counted and len(self.entries) == self.files + self.folders

    def to_json(self) -> dict[str, Any]:
        entries = [[entry.path, entry.kind.value, entry.size, entry.modified_at.isoformat()] for entry in self.entries]
        return {
            "files": self.files,
            "folders": self.folders,
            "size_bytes": self.size_bytes,
            "entries": entries,
            "counted": self.is_counted,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Contents":
        entries = tuple(
            DiskEntry(path, DiskEntryKind(kind), size, datetime.fromisoformat(modified_at))
            for path, kind, size, modified_at in data["entries"]
        )
        return cls(data["files"], data["folders"], data["size_bytes"], entries, data.get("counted", True))
