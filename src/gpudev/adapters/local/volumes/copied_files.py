"""Table of copied files: which file of a tree became which file of a copy. In SQLite, as there may be millions.

Within one copy it finds further names of the same file (hard links). Between two copies it finds unchanged files: the
kernel sets a file's ctime whenever its bytes, its rights or its attributes change, and no user can set it back.

An error of the table is an error of the device it is on, and is therefore raised as OSError.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BATCH_ROWS = 2000


@dataclass(frozen=True, slots=True)
class CopiedFile:
    path: str
    """In the copy, relative to its top."""
    ctime_ns: int
    mtime_ns: int
    """Both wrapped to the table's 64 bits: users may set a time that is centuries away."""
    size: int
    settled: bool
    """Every later change will change its ctime. False for a file that was being written during the copy."""

    def is_unchanged(self, stat: os.stat_result) -> bool:
        found = (_signed(stat.st_ctime_ns), _signed(stat.st_mtime_ns), stat.st_size)
        return (self.ctime_ns, self.mtime_ns, self.size) == found


class CopiedFileTable:
    """For one thread. A crash loses its last entries, which is harmless: the copy is started again then."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        mode = "rwc" if create else "ro"
        self._fresh: dict[int, CopiedFile] = {}
        with _sqlite_errors_as_os_errors():
            self._table = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        if create:
            try:
                self._create()
            except OSError:
                self._table.close()
                raise

    def add_file(self, stat: os.stat_result, path: str, *, settled: bool) -> None:
        ctime_ns, mtime_ns = _signed(stat.st_ctime_ns), _signed(stat.st_mtime_ns)
        self._fresh[stat.st_ino] = CopiedFile(path, ctime_ns, mtime_ns, stat.st_size, settled)
        if len(self._fresh) >= _BATCH_ROWS:
            self._write()

    def find_file(self, inode: int) -> CopiedFile | None:
        if found := self._fresh.get(inode):
            return found
        query = "SELECT path, ctime_ns, mtime_ns, size, settled FROM files WHERE inode = ?"
        with _sqlite_errors_as_os_errors():
            row = self._table.execute(query, (_signed(inode),)).fetchone()
        return None if row is None else CopiedFile(os.fsdecode(row[0]), row[1], row[2], row[3], bool(row[4]))

    def finish(self) -> None:
        """Write all added files. A table that is closed without this belongs to a copy that failed."""
        if self._fresh:
            self._write()

    def close(self) -> None:
        self._table.close()

    def _create(self) -> None:
        with _sqlite_errors_as_os_errors():
            self._table.execute("PRAGMA journal_mode = OFF")
            self._table.execute("PRAGMA synchronous = OFF")  # the whole file system is synced when the copy is done
            self._table.execute(
                "CREATE TABLE files (inode INTEGER PRIMARY KEY,"
                " path BLOB, ctime_ns INTEGER, mtime_ns INTEGER, size INTEGER, settled INTEGER)"
            )

    def _write(self) -> None:
        rows = [
            (_signed(inode), os.fsencode(file.path), file.ctime_ns, file.mtime_ns, file.size, int(file.settled))
            for inode, file in self._fresh.items()
        ]
        with _sqlite_errors_as_os_errors():
            self._table.execute("BEGIN")
            self._table.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._table.execute("COMMIT")
        self._fresh.clear()


def _signed(number: int) -> int:
    """SQLite's integers have 64 bits with a sign. Inodes are unsigned, and times may need more bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


@contextlib.contextmanager
def _sqlite_errors_as_os_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        code = errno.ENOSPC if is_full else errno.EIO
        raise OSError(code, f"{os.strerror(code)} ({error})") from error
