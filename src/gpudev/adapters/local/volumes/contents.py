"""Looks through a folder for what is in it.

It never follows a link and holds no more than it tells, however much there is.
"""

import contextlib
import os
import stat
from bisect import insort
from collections.abc import Callable
from datetime import UTC, datetime

from gpudev.adapters.local.volumes.tree_walk import TreeWalk
from gpudev.domain.disks.contents import Contents, DiskEntry, DiskEntryKind

MOST_ENTRIES = 1000
_LONGEST_PATH = 1000
"""What is deeper is counted, not named: a thousand names of a tree without end would be more than anybody can store."""


class ContentsCounter:
    """Contents in the making."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most = most_entries
        self._nearest: list[tuple[int, str, int, int, int]] = []
        self._files = 0
        self._folders = 0
        self._bytes = 0

    def add(self, depth: int, path: str, found: os.stat_result) -> None:
        """`depth`: of the folder that holds it, 0 at the top."""
        if stat.S_ISDIR(found.st_mode):
            self._folders += 1
        else:
            self._files += 1
        if stat.S_ISREG(found.st_mode):
            self._bytes += found.st_size
        if len(path) > _LONGEST_PATH:
            return
        # The deeper, the less it says about a disk, so that a cache's files do not crowd out the rest.
        if len(self._nearest) < self._most or (depth, path) < self._nearest[-1][:2]:
            insort(self._nearest, (depth, path, found.st_mode, found.st_size, found.st_mtime_ns))
            del self._nearest[self._most :]

    def to_contents(self) -> Contents:
        entries = tuple(
            DiskEntry(_printable_path(path), _entry_kind(mode), size if stat.S_ISREG(mode) else 0, _utc_time(mtime_ns))
            for _, path, mode, size, mtime_ns in self._nearest
        )
        return Contents(self._files, self._folders, self._bytes, entries)


def list_contents(top: int, most_entries: int = MOST_ENTRIES, check: Callable[[], None] = lambda: None) -> Contents:
    """`top`: the open folder. `check` is called for every entry; what it raises breaks the work off."""
    count = ContentsCounter(most_entries)
    trail = TreeWalk(top)
    try:
        way = [_count_files(trail, count, check)]
        while way:
            if not way[-1]:
                way.pop()
                if way:
                    del way[len(way) + 1 - trail.leave() :]
            elif (found := _enter(trail, way[-1].pop())) is not None:
                count.add(trail.depth - 1, trail.path, found)
                way.append(_count_files(trail, count, check))
    finally:
        trail.close()
    return count.to_contents()


def _count_files(trail: TreeWalk, count: ContentsCounter, check: Callable[[], None]) -> list[str]:
    """All but the folders, which are named: they are only looked at when they are entered, because something may be
    mounted there that never answers."""
    folders: list[str] = []
    above = f"{trail.path}/" if trail.depth else ""
    with os.scandir(trail.fd) as entries:
        for entry in entries:
            check()
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
                continue
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(entry.name, dir_fd=trail.fd, follow_symlinks=False)
                count.add(trail.depth, above + entry.name, found)
    return folders


def _enter(trail: TreeWalk, name: str) -> os.stat_result | None:
    """None: taken away, no folder any more, or closed to us."""
    try:
        return trail.enter(name)
    except OSError:
        return None


def _entry_kind(mode: int) -> DiskEntryKind:
    if stat.S_ISREG(mode):
        return DiskEntryKind.FILE
    if stat.S_ISDIR(mode):
        return DiskEntryKind.FOLDER
    return DiskEntryKind.LINK if stat.S_ISLNK(mode) else DiskEntryKind.OTHER


def _utc_time(mtime_ns: int) -> datetime:
    """A user may have set it to anything."""
    try:
        return datetime.fromtimestamp(mtime_ns // 10**9, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _printable_path(path: str) -> str:
    """File names are bytes; what is no UTF-8 in them is shown as such."""
    return os.fsencode(path).decode(errors="replace")
