"""Lists the contents of a folder: counts, sizes and the entries nearest to the top.

It never follows a link. It keeps no more in memory than it returns, however many files there are.
"""

import os
import stat
from bisect import insort
from datetime import UTC, datetime

from gpudev.domain.disks.contents import Contents, DiskEntry, DiskEntryKind

MAX_ENTRIES = 1000
_MAX_PATH_LENGTH = 1000
"""Entries with a longer path are counted but not named: a thousand of them would be too much to store."""


class ContentsCounter:
    """Collects entries one by one, and returns them as Contents."""

    def __init__(self, most_entries: int = MAX_ENTRIES) -> None:
        self._most = most_entries
        self._nearest: list[tuple[int, str, int, int, int]] = []
        self._files = 0
        self._folders = 0
        self._bytes = 0

    def add(self, depth: int, path: str, found: os.stat_result) -> None:
        """`depth`: that of the folder which contains it, 0 at the top."""
        if stat.S_ISDIR(found.st_mode):
            self._folders += 1
        else:
            self._files += 1
        if stat.S_ISREG(found.st_mode):
            self._bytes += found.st_size
        if len(path) > _MAX_PATH_LENGTH:
            return
        # Entries near the top say most about a disk. So the files of a cache do not crowd out the rest.
        if len(self._nearest) < self._most or (depth, path) < self._nearest[-1][:2]:
            insort(self._nearest, (depth, path, found.st_mode, found.st_size, found.st_mtime_ns))
            del self._nearest[self._most :]

    def to_contents(self) -> Contents:
        entries = tuple(
            DiskEntry(_printable_path(path), _entry_kind(mode), size if stat.S_ISREG(mode) else 0, _utc_time(mtime_ns))
            for _, path, mode, size, mtime_ns in self._nearest
        )
        return Contents(self._files, self._folders, self._bytes, entries)


def _entry_kind(mode: int) -> DiskEntryKind:
    if stat.S_ISREG(mode):
        return DiskEntryKind.FILE
    if stat.S_ISDIR(mode):
        return DiskEntryKind.FOLDER
    return DiskEntryKind.LINK if stat.S_ISLNK(mode) else DiskEntryKind.OTHER


def _utc_time(mtime_ns: int) -> datetime:
    """Users may set the time of a file to anything. Out of range: 1970."""
    try:
        return datetime.fromtimestamp(mtime_ns // 10**9, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _printable_path(path: str) -> str:
    """File names are bytes. Bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(path).decode(errors="replace")
