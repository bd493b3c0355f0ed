"""Copies a user's tree as faithfully as possible, while the user may be changing it, and lists its contents.

The file system and our rights set the limits. What cannot be copied is counted and noted.
"""

import contextlib
import errno
import os
import stat
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.filesystem import clone_file, copy_bytes, next_data
from gpudev.adapters.local.volumes.tree_walk import (
    MAX_PATH_LENGTH,
    TreeWalk,
    ensure_passable,
    exclusive_access,
    open_unreadable_file,
)
from gpudev.domain.disks.contents import Contents, DiskEntry, DiskEntryKind

# Contents: counts, sizes and the entries nearest to the top. Memory use does not depend on the number of files.

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

    def add(self, depth: int, path: str | None, found: os.stat_result) -> None:
        """`depth`: that of the folder which contains it, 0 at the top. `path` None: too long."""
        if stat.S_ISDIR(found.st_mode):
            self._folders += 1
        else:
            self._files += 1
        if stat.S_ISREG(found.st_mode):
            self._bytes += found.st_size
        if path is None or len(path) > _MAX_PATH_LENGTH:
            return
        # Entries near the top describe a disk best. The files of a cache must not crowd out the rest.
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


# Metadata of one file: owner, rights, attributes and times

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA, errno.ERANGE)
_HAS_EXTENDED_ATTRIBUTES = hasattr(os, "listxattr")


def copy_metadata(source: int | None, target: int, found: os.stat_result, mode: int, new_mode: int) -> list[str]:
    """Copy it between open files. Returns the names of attributes that could not be copied.

    `found` and `mode` are those of the source, `new_mode` is the target's current mode. Without a source, extended
    attributes are left out. The order matters: changing the owner removes special rights and attributes, and each step
    changes times.
    """
    desired_mode = stat.S_IMODE(mode)
    if not _copy_owner(target, found):
        desired_mode &= ~(stat.S_ISUID | stat.S_ISGID)  # the new owner must not get the old owner's rights
    if desired_mode != new_mode:
        os.fchmod(target, desired_mode)
    lost = _copy_extended_attributes(source, target) if _HAS_EXTENDED_ATTRIBUTES and source is not None else []
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    return lost


def _copy_owner(target: int, found: os.stat_result) -> bool:
    """Returns whether the target has the source's owner and group now."""
    if (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid()):
        return True
    try:
        os.fchown(target, found.st_uid, found.st_gid)
    except PermissionError:
        with contextlib.suppress(PermissionError):
            os.fchown(target, -1, found.st_gid)
        return False
    return True


def _copy_extended_attributes(source: int, target: int) -> list[str]:
    lost = []
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return []
        raise
    for name in names:
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            lost.append(name)
    return lost


# Trees

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINK = (errno.EMLINK, errno.ENAMETOOLONG, errno.EXDEV, errno.ENOENT, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
_MAX_NOTES = 50
_MAX_UNREAD_PATHS = 5
_MAX_DEPTH = MAX_PATH_LENGTH
"""Twice as deep as any path can name. Users can move folders meanwhile, which makes each level cost as much as all."""
_TOO_DEEP = "nested too deeply: not copied"
_REPLACED = "replaced during the copy"
_UNREADABLE = "it cannot be read"
_DUPLICATE_NAME = "replaced during the copy; the earlier one is kept"
"""A folder that changes while it is read may return the same name twice."""


class CopyMethod(StrEnum):
    """The best method that was used in a copy."""

    REFLINK = "reflink"
    HARD_LINKS = "hard links"
    """To an earlier copy, for files that have not changed since. The rest was copied."""
    COPY = "copy"


@dataclass(slots=True)
class CopyProgress:
    """Progress of a copy, and at its end the result. Other threads may read it at any time."""

    files: int = 0
    """Names of files in the tree: cloned, linked, copied, or a further name of one of these."""
    folders: int = 0
    size_bytes: int = 0
    cloned: int = 0
    linked: int = 0
    copied: int = 0
    left_out: int = 0
    unread: int = 0
    """Of these, files and folders that we may not read: they exist in the source only."""
    unread_paths: list[str] = field(default_factory=list)
    """The first of them."""
    notes: list[str] = field(default_factory=list)
    """What the copy lacks, as text for people; the first notes only."""

    @property
    def method(self) -> CopyMethod:
        if self.cloned:
            return CopyMethod.REFLINK
        return CopyMethod.HARD_LINKS if self.linked else CopyMethod.COPY

    def add_skipped(self, path: str, reason: str) -> None:
        self.left_out += 1
        self.add_note(path, reason)
        if reason == _UNREADABLE:
            self.unread += 1
            if len(self.unread_paths) < _MAX_UNREAD_PATHS:
                self.unread_paths.append(_printable_path(path))

    def add_note(self, path: str, note: str) -> None:
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(f"{_printable_path(path)}: {note}")


@dataclass(frozen=True, slots=True)
class EarlierCopy:
    """An earlier copy of the same tree on the same file system. Nothing changes it."""

    top: int
    files: CopiedFileTable


@dataclass(slots=True)
class _Folder:
    found: os.stat_result
    inner: list[str] = field(default_factory=list)
    """Folders in it that are still to be entered."""
    original_mode: int | None = None
    """The mode to restore when we leave it, where permissions were missing. None: nothing was changed."""


class TreeCopy:
    def __init__(
        self,
        source: int,
        target: int,
        files: CopiedFileTable,
        progress: CopyProgress,
        *,
        earlier: EarlierCopy | None = None,
        settled_before_ns: int | None = None,
        contents: ContentsCounter | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`source` and `target` are open folders; the target is empty, and nothing else can reach it. `files` gets all
        files with several names and, where `settled_before_ns` is given, all files. `check` is called often; an
        exception from it stops the copy."""
        self._source = TreeWalk(source)
        self._target = TreeWalk(target)
        self._top = target
        self._files = files
        self._earlier = earlier
        self._settled_before_ns = settled_before_ns
        self._progress = progress
        self._contents = contents
        self._check = check
        self._can_clone = True

    def run(self) -> None:
        try:
            with exclusive_access(self._source.fd, self._check):
                self._copy_all()
        finally:
            self._source.close()
            self._target.close()

    def _copy_all(self) -> None:
        entered = [_Folder(os.fstat(self._source.fd))]
        try:
            entered[-1].inner = self._copy_files()
            while entered:
                self._check()
                if entered[-1].inner:
                    folder = self._enter(entered[-1].inner.pop())
                    if folder is not None:
                        entered.append(folder)
                        folder.inner = self._copy_files()
                else:
                    self._leave(entered)
        finally:
            self._restore_modes(entered)

    # Folders

    def _enter(self, name: str) -> _Folder | None:
        if self._source.depth >= _MAX_DEPTH:
            self._skip(self._path(name), _TOO_DEEP)
            return None
        path = self._source.find_path(name)
        try:
            os.mkdir(name, 0o700, dir_fd=self._target.fd)
        except FileExistsError:
            self._skip(self._path(name), _DUPLICATE_NAME)
            return None
        original_mode = ensure_passable(name, self._source.fd)
        try:
            found = self._source.enter(name)
        except OSError as error:
            os.rmdir(name, dir_fd=self._target.fd)
            self._skip(self._path(name), _Skipped(error).reason)
            return None
        self._target.enter(name)
        self._progress.folders += 1
        if self._contents is not None:
            self._contents.add(self._source.depth - 1, path, found)
        return _Folder(found, original_mode=original_mode)

    def _leave(self, folders: list[_Folder]) -> None:
        """Leave one folder, or several where the walk cannot find the parent. What was not copied there is noted."""
        self._finish_folder(folders.pop(), self._source.fd)
        if not folders:
            return
        for _ in range(self._source.leave() - 1):
            self._target.leave()
            for name in folders[-1].inner:
                self._skip(self._path(name), "moved away during the copy")
            self._finish_folder(folders.pop(), None)
        self._target.leave()

    def _finish_folder(self, folder: _Folder, source: int | None) -> None:
        """Comes last: changes in a folder change its times, and may need permissions that the user removed."""
        mode = folder.found.st_mode if folder.original_mode is None else folder.original_mode
        self._copy_metadata(source, self._target.fd, folder.found, mode=mode, new_mode=0o700, name="")
        if folder.original_mode is not None and source is not None:
            os.fchmod(source, stat.S_IMODE(folder.original_mode))

    def _restore_modes(self, folders: list[_Folder]) -> None:
        """After a stopped copy: restore the modes of all entered folders, up to the top."""
        with contextlib.suppress(OSError):
            while any(folder.original_mode is not None for folder in folders):
                folder = folders.pop()
                if folder.original_mode is not None:
                    os.fchmod(self._source.fd, stat.S_IMODE(folder.original_mode))
                del folders[len(folders) + 1 - self._source.leave() :]

    # Files, links and special files

    def _copy_files(self) -> list[str]:
        folders: list[str] = []
        with os.scandir(self._source.fd) as entries:
            for entry in entries:
                self._check()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                    continue
                try:
                    if entry.is_file(follow_symlinks=False):
                        self._copy_file(entry.name)
                    else:
                        self._copy_special(entry.name)
                except _Skipped as skipped:
                    self._skip(self._path(entry.name), skipped.reason)
                except FileExistsError:
                    self._skip(self._path(entry.name), _DUPLICATE_NAME)
        return folders

    def _copy_file(self, name: str) -> None:
        if self._earlier is not None:
            found = self._stat(name)
            if stat.S_ISREG(found.st_mode) and self._try_link_earlier(name, found):
                return
        source, mode = self._open_file(name)
        try:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                raise _Skipped(_REPLACED)  # opened, but not read
            if not (found.st_nlink > 1 and self._try_link_copied(name, found)):
                self._copy_open_file(source, name, found, mode or found.st_mode)
        finally:
            os.close(source)
        self._count(name, found)

    def _copy_open_file(self, source: int, name: str, found: os.stat_result, mode: int) -> None:
        target = os.open(name, _WRITING, 0o600, dir_fd=self._target.fd)
        try:
            if found.st_size > 0:
                self._copy_content(source, target, found)
            self._copy_metadata(source, target, found, mode=mode, new_mode=0o600, name=name)
        finally:
            os.close(target)
        if self._settled_before_ns is not None or found.st_nlink > 1:
            self._remember(found, name, settled=self._is_settled(source, found))

    def _remember(self, found: os.stat_result, name: str, *, settled: bool) -> None:
        """As a file that later names can be linked to. One without a usable path is copied again instead."""
        path = self._source.find_path(name)
        if path is not None:
            self._files.add_file(found, path, settled=settled)

    def _is_settled(self, source: int, found: os.stat_result) -> bool:
        """Whether the file did not change while it was read, and its ctime shows every later change.

        A memory-mapped file may change without a new ctime until its changes are flushed. All files were flushed after
        `settled_before_ns`, so a file whose ctime is older did not change.
        """
        before = self._settled_before_ns
        return before is not None and found.st_ctime_ns < before and os.fstat(source).st_ctime_ns == found.st_ctime_ns

    def _copy_content(self, source: int, target: int, found: os.stat_result) -> None:
        if self._can_clone:
            if clone_file(source, target):
                self._progress.cloned += 1
                self._progress.size_bytes += found.st_size
                return
            self._can_clone = self._progress.cloned > 0  # a failure after a success concerns this file only
        self._progress.copied += 1
        end = found.st_size
        if found.st_blocks * 512 >= end:
            self._copy_range(source, target, 0, end)
            return
        position: int | None = 0
        while position is not None and position < end:
            data_range = next_data(source, position, end)
            position = None if data_range is None else self._copy_range(source, target, *data_range)
        os.ftruncate(target, end)

    def _copy_range(self, source: int, target: int, start: int, end: int) -> int:
        """Returns where the next range begins: at `end`, also where the file was truncated meanwhile."""
        while start < end:
            self._check()
            count = copy_bytes(source, target, start, end)
            if count == 0:
                return end
            start += count
            self._progress.size_bytes += count
        return end

    def _try_link_earlier(self, name: str, found: os.stat_result) -> bool:
        assert self._earlier is not None
        file = self._earlier.files.find_file(found.st_ino)
        if file is None or not file.settled or not file.is_unchanged(found):
            return False
        if not _try_link(self._earlier.top, file.path, self._target.fd, name):
            return False
        self._remember(found, name, settled=True)
        self._progress.linked += 1
        self._progress.size_bytes += found.st_size
        self._count(name, found)
        return True

    def _try_link_copied(self, name: str, found: os.stat_result) -> bool:
        """Link a further name of a file that was copied already. False: it was not, or cannot be linked."""
        file = self._files.find_file(found.st_ino)
        return file is not None and file.is_unchanged(found) and _try_link(self._top, file.path, self._target.fd, name)

    def _open_file(self, name: str) -> tuple[int, int | None]:
        """The descriptor, and the file's mode if that had to be changed for a moment, else None."""
        try:
            try:
                return os.open(name, _READING, dir_fd=self._source.fd), None
            except PermissionError:
                if os.geteuid() == 0:
                    raise  # do not change the mode: a link may have that name by now
                return open_unreadable_file(name, _READING, self._source.fd)
        except OSError as error:
            raise _Skipped(error) from error

    def _stat(self, name: str) -> os.stat_result:
        try:
            return os.stat(name, dir_fd=self._source.fd, follow_symlinks=False)
        except OSError as error:
            raise _Skipped(error) from error

    def _read_link(self, name: str) -> str:
        try:
            return os.readlink(name, dir_fd=self._source.fd)
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a link any more
                raise _Skipped(_REPLACED) from error
            raise _Skipped(error) from error

    def _copy_special(self, name: str) -> None:
        found = self._stat(name)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(self._read_link(name), name, dir_fd=self._target.fd)
        elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            # A whiteout in container layers ("nothing is here"). Any user may create one.
            os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=self._target.fd)
        elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            raise _Skipped("a device: not copied")
        elif stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            raise _Skipped("a pipe or socket: it has no contents")
        else:
            raise _Skipped(_REPLACED)  # a file or folder by now
        with contextlib.suppress(PermissionError):
            os.chown(name, found.st_uid, found.st_gid, dir_fd=self._target.fd, follow_symlinks=False)
        times = (found.st_atime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=self._target.fd, follow_symlinks=False)
        self._count(name, found)

    # Progress

    def _copy_metadata(
        self, source: int | None, target: int, found: os.stat_result, *, mode: int, new_mode: int, name: str
    ) -> None:
        for lost in copy_metadata(source, target, found, mode, new_mode):
            self._progress.add_note(self._path(name), f"attribute {lost} could not be copied")

    def _count(self, name: str, found: os.stat_result) -> None:
        self._progress.files += 1
        if self._contents is not None:
            self._contents.add(self._source.depth, self._source.find_path(name), found)

    def _path(self, name: str) -> str:
        """For people: of an entry whose path is too long, only the name."""
        path = self._source.find_path(name)
        return f"…/{name}" if path is None else path

    def _skip(self, path: str, reason: str | None) -> None:
        if reason is not None:
            self._progress.add_skipped(path, reason)


class _Skipped(Exception):
    """An entry that is left out: removed or replaced meanwhile, a mount, or readable neither by us nor by the user.

    Any other error of reading ends the copy.
    """

    def __init__(self, cause: str | OSError) -> None:
        super().__init__(cause)
        self.reason = _skip_reason(cause) if isinstance(cause, OSError) else cause
        """None: it was removed, which needs no note."""


def _skip_reason(error: OSError) -> str | None:
    match error.errno:
        case errno.ENOENT:
            return None
        case errno.ELOOP | errno.ENOTDIR | errno.ENXIO:
            return _REPLACED
        case errno.EXDEV:
            return "something else is mounted there"
        case errno.EACCES | errno.EPERM:
            return _UNREADABLE
        case _:
            raise error


def _try_link(top: int, path: str, folder: int, name: str) -> bool:
    try:
        os.link(path, name, src_dir_fd=top, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True
