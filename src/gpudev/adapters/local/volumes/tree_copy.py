"""Copies a user's tree as faithfully as the file system and our rights allow, while the user may be changing it."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gpudev.adapters.local.volumes.contents import ContentsCounter
from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.filesystem import clone_file, copy_bytes, next_data
from gpudev.adapters.local.volumes.tree_walk import TreeWalk, ensure_passable, exclusive_access, open_unreadable_file

# Owner, rights, attributes and times of a file, from one open file to another: as much as we may keep.


_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA, errno.ERANGE)
_HAS_EXTENDED_ATTRIBUTES = hasattr(os, "listxattr")


def copy_metadata(source: int | None, target: int, found: os.stat_result, mode: int, new_mode: int) -> list[str]:
    """The names of attributes that could not be kept. `found` and `mode`: what the source was; `new_mode`: what the
    target has now. Without a source, extended attributes are left out.

    The order matters: a new owner takes special rights and attributes away, and all of it changes times."""
    wanted = stat.S_IMODE(mode)
    if not _copy_owner(target, found):
        wanted &= ~(stat.S_ISUID | stat.S_ISGID)  # rights of a stranger are nobody's to hand out
    if wanted != new_mode:
        os.fchmod(target, wanted)
    lost = _copy_extended_attributes(source, target) if _HAS_EXTENDED_ATTRIBUTES and source is not None else []
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    return lost


def _copy_owner(target: int, found: os.stat_result) -> bool:
    """Whether it has the source's owner and group now."""
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


_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINK = (errno.EMLINK, errno.ENAMETOOLONG, errno.EXDEV, errno.ENOENT, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
_MOST_NOTES = 50
_MOST_UNREAD = 5
_UNREADABLE = "it cannot be read"
_DUPLICATE_NAME = "replaced while it was being copied; what it was before is kept"
"""A folder that changes while it is read may tell the same name twice."""


class CopyMethod(StrEnum):
    """The best that most of a copy was made by."""

    REFLINK = "reflink"
    HARD_LINKS = "hard links"
    """To an earlier copy, for what has not changed since; the rest was copied."""
    COPY = "copy"


@dataclass(slots=True)
class CopyProgress:
    """How far a copy is; at its end, what was done. Others may read it meanwhile."""

    files: int = 0
    """With a name in the tree: cloned, linked, copied or a further name of one that was."""
    folders: int = 0
    size_bytes: int = 0
    cloned: int = 0
    linked: int = 0
    copied: int = 0
    left_out: int = 0
    unread: int = 0
    """Of these, what holds something and is closed to us: it is in the source and nowhere else."""
    unread_paths: list[str] = field(default_factory=list)
    """The first of them."""
    notes: list[str] = field(default_factory=list)
    """What was not kept as it was, in words; the first of them."""

    @property
    def method(self) -> CopyMethod:
        if self.cloned:
            return CopyMethod.REFLINK
        return CopyMethod.HARD_LINKS if self.linked else CopyMethod.COPY

    def add_skipped(self, path: str, words: str) -> None:
        self.left_out += 1
        self.add_note(path, words)
        if words == _UNREADABLE:
            self.unread += 1
            if len(self.unread_paths) < _MOST_UNREAD:
                self.unread_paths.append(_printable_path(path))

    def add_note(self, path: str, words: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(f"{_printable_path(path)}: {words}")


@dataclass(frozen=True, slots=True)
class EarlierCopy:
    """An earlier copy of the same tree, on the same file system, which nobody changes."""

    top: int
    files: CopiedFileTable


@dataclass(slots=True)
class _Folder:
    found: os.stat_result
    inner: list[str] = field(default_factory=list)
    """Those in it that are still to be entered."""
    closed: int | None = None
    """The mode that it gets back when we leave it, where it had to be opened up for us."""


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
        """`source` and `target` are open folders, the target an empty one that nobody else can reach. `known` is
        filled with what has several names and, where `settled_before_ns` is told, with everything. `check` is called
        often; what it raises breaks the work off."""
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
        way = [_Folder(os.fstat(self._source.fd))]
        try:
            way[-1].inner = self._copy_files()
            while way:
                self._check()
                if way[-1].inner:
                    entered = self._enter(way[-1].inner.pop())
                    if entered is not None:
                        way.append(entered)
                        entered.inner = self._copy_files()
                else:
                    self._leave(way)
        finally:
            self._restore_modes(way)

    # Folders

    def _enter(self, name: str) -> _Folder | None:
        path = self._path(name)
        try:
            os.mkdir(name, 0o700, dir_fd=self._target.fd)
        except FileExistsError:
            self._skip(path, _DUPLICATE_NAME)
            return None
        closed = ensure_passable(name, self._source.fd)
        try:
            found = self._source.enter(name)
        except OSError as error:
            os.rmdir(name, dir_fd=self._target.fd)
            self._skip(path, _Skipped(error).reason)
            return None
        self._target.enter(name)
        self._progress.folders += 1
        if self._contents is not None:
            self._contents.add(self._source.depth - 1, path, found)
        return _Folder(found, closed=closed)

    def _leave(self, folders: list[_Folder]) -> None:
        """More than one where the way back is gone; what was not reached yet in those is told."""
        self._finish_folder(folders.pop(), self._source.fd)
        if not folders:
            return
        for _ in range(self._source.leave() - 1):
            self._target.leave()
            for name in folders[-1].inner:
                self._skip(self._path(name), "moved away while it was being copied")
            self._finish_folder(folders.pop(), None)
        self._target.leave()

    def _finish_folder(self, folder: _Folder, source: int | None) -> None:
        """Last, because what happens in a folder changes its times and may need rights that the user took away."""
        mode = folder.found.st_mode if folder.closed is None else folder.closed
        self._copy_metadata(source, self._target.fd, folder.found, mode=mode, new_mode=0o700, name="")
        if folder.closed is not None and source is not None:
            os.fchmod(source, stat.S_IMODE(folder.closed))

    def _restore_modes(self, folders: list[_Folder]) -> None:
        """Where the work was broken off: all the way up."""
        with contextlib.suppress(OSError):
            while any(folder.closed is not None for folder in folders):
                folder = folders.pop()
                if folder.closed is not None:
                    os.fchmod(self._source.fd, stat.S_IMODE(folder.closed))
                del folders[len(folders) + 1 - self._source.leave() :]

    # All the rest

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
                except _Skipped as left_out:
                    self._skip(self._path(entry.name), left_out.reason)
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
                raise _Skipped("replaced while it was being copied")  # opened, not read
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
            settled = self._is_settled(source, found)
            self._files.add_file(found, self._path(name), settled=settled)

    def _is_settled(self, source: int, found: os.stat_result) -> bool:
        """Memory-mapped files change without a new ctime as long as their changes have not been written out. All were,
        after that moment: a file not touched since before it did not change while it was read."""
        before = self._settled_before_ns
        return before is not None and found.st_ctime_ns < before and os.fstat(source).st_ctime_ns == found.st_ctime_ns

    def _copy_content(self, source: int, target: int, found: os.stat_result) -> None:
        if self._can_clone:
            if clone_file(source, target):
                self._progress.cloned += 1
                self._progress.size_bytes += found.st_size
                return
            self._can_clone = self._progress.cloned > 0  # one that cannot be says nothing about the others
        self._progress.copied += 1
        end = found.st_size
        if found.st_blocks * 512 >= end:
            self._copy_range(source, target, 0, end)
            return
        position: int | None = 0
        while position is not None and position < end:
            stretch = next_data(source, position, end)
            position = None if stretch is None else self._copy_range(source, target, *stretch)
        os.ftruncate(target, end)

    def _copy_range(self, source: int, target: int, start: int, end: int) -> int:
        """Where it ended; `end` also where the file was cut short meanwhile."""
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
        self._files.add_file(found, self._path(name), settled=True)
        self._progress.linked += 1
        self._progress.size_bytes += found.st_size
        self._count(name, found)
        return True

    def _try_link_copied(self, name: str, found: os.stat_result) -> bool:
        """Another name of a file that was copied already."""
        file = self._files.find_file(found.st_ino)
        return file is not None and file.is_unchanged(found) and _try_link(self._top, file.path, self._target.fd, name)

    def _open_file(self, name: str) -> tuple[int, int | None]:
        """And the mode it had, if that had to be changed for a moment."""
        try:
            try:
                return os.open(name, _READING, dir_fd=self._source.fd), None
            except PermissionError:
                if os.geteuid() == 0:
                    raise  # and nothing is tried: by now a link may have that name
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
            if error.errno == errno.EINVAL:  # no link any more
                raise _Skipped("replaced while it was being copied") from error
            raise _Skipped(error) from error

    def _copy_special(self, name: str) -> None:
        found = self._stat(name)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(self._read_link(name), name, dir_fd=self._target.fd)
        elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            # "Nothing is here", in the layers of containers; anybody may make one.
            os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=self._target.fd)
        elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            raise _Skipped("a device, refused")
        else:
            raise _Skipped("a pipe or socket, which holds nothing")
        with contextlib.suppress(PermissionError):
            os.chown(name, found.st_uid, found.st_gid, dir_fd=self._target.fd, follow_symlinks=False)
        times = (found.st_atime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=self._target.fd, follow_symlinks=False)
        self._count(name, found)

    # Telling

    def _copy_metadata(
        self, source: int | None, target: int, found: os.stat_result, *, mode: int, new_mode: int, name: str
    ) -> None:
        for lost in copy_metadata(source, target, found, mode, new_mode):
            self._progress.add_note(self._path(name), f"the attribute {lost} could not be kept")

    def _count(self, name: str, found: os.stat_result) -> None:
        self._progress.files += 1
        if self._contents is not None:
            self._contents.add(self._source.depth, self._path(name), found)

    def _path(self, name: str) -> str:
        return f"{self._source.path}/{name}" if self._source.depth else name

    def _skip(self, path: str, words: str | None) -> None:
        if words is not None:
            self._progress.add_skipped(path, words)


class _Skipped(Exception):
    """What the user took away or replaced meanwhile, what is mounted there, and what neither we nor the user can read.
    Any other trouble with reading ends the copy."""

    def __init__(self, why: str | OSError) -> None:
        super().__init__(why)
        self.reason = _skip_reason(why) if isinstance(why, OSError) else why
        """None: not worth telling, it is gone."""


def _printable_path(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")


def _skip_reason(error: OSError) -> str | None:
    match error.errno:
        case errno.ENOENT:
            return None
        case errno.ELOOP | errno.ENOTDIR | errno.ENXIO:
            return "replaced while it was being copied"
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
