"""Walks and removes a tree that its user may be changing, also where the user removed their own permissions."""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpudev.adapters.local.volumes.filesystem import open_folder

NOT_A_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of entering a folder that was removed or replaced since its name was read."""


MAX_PATH_LENGTH = 4096
"""No system call takes a longer path."""


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    """Empty for the top."""
    identity: tuple[int, int]
    path: str | None
    """From the top. None: too long. A path for each level of a deep tree would take quadratic time."""


class TreeWalk:
    def __init__(self, top: int) -> None:
        """`top` is closed by the caller, and must remain open as long as this is used."""
        self._top = top
        self._fd = os.dup(top)
        self._steps = [_Step("", _file_identity(top), "")]

    @property
    def fd(self) -> int:
        """The current folder, until the next `enter` or `leave`."""
        return self._fd

    @property
    def depth(self) -> int:
        """0 at the top."""
        return len(self._steps) - 1

    def find_path(self, name: str) -> str | None:
        """The path of an entry of the current folder, relative to the top. None: longer than any path may be."""
        folder = self._steps[-1].path
        if folder is None or len(folder) + len(name) >= MAX_PATH_LENGTH:
            return None
        return f"{folder}/{name}" if folder else name

    def enter(self, name: str) -> os.stat_result:
        fd = open_folder(name, self._fd)
        info = os.fstat(fd)
        self._steps.append(_Step(name, (info.st_dev, info.st_ino), self.find_path(name)))
        self._move(fd)
        return info

    def leave(self) -> int:
        """Go back to the folder from which this one was entered. Returns the number of levels.

        It is 1, or more when a user moved the folder meanwhile and its parent cannot be found. The top is always
        found.
        """
        levels = 0
        while True:
            self._steps.pop()
            levels += 1
            if self._try_parent() or self._try_from_top():
                return levels

    def close(self) -> None:
        os.close(self._fd)

    def _try_parent(self) -> bool:
        """Try "..". It may be any folder by now, so its identity is checked."""
        try:
            fd = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return False
        if _file_identity(fd) != self._steps[-1].identity:
            os.close(fd)
            return False
        self._move(fd)
        return True

    def _try_from_top(self) -> bool:
        """Try all names from the top down, and check each identity."""
        fd = os.dup(self._top)
        for step in self._steps[1:]:
            inner = -1
            with contextlib.suppress(OSError):
                inner = open_folder(step.name, fd)
            os.close(fd)
            if inner < 0:
                return False
            fd = inner
            if _file_identity(fd) != step.identity:
                os.close(fd)
                return False
        self._move(fd)
        return True

    def _move(self, fd: int) -> None:
        os.close(self._fd)
        self._fd = fd


def _file_identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


# Missing permissions of the owner, added so that the tree can be copied. Only where we are that owner: root needs none,
# and must not change the mode of a link's target.

_PASSABLE = 0o500
_POLL_S = 0.2

_trees_in_use: set[tuple[int, int]] = set()
_trees_changed = threading.Condition()


def ensure_passable(folder: str | Path, within: int | None = None) -> int | None:
    """Add the missing permissions. Returns the earlier mode; None: nothing was changed.

    They are needed as long as anything in the folder is opened by its name.
    """
    if os.geteuid() == 0:
        return None
    with contextlib.suppress(OSError):  # entering it raises the same error
        mode = os.stat(folder, dir_fd=within, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & _PASSABLE != _PASSABLE:
            os.chmod(folder, stat.S_IMODE(mode) | _PASSABLE, dir_fd=within)
            return mode
    return None


def open_unreadable_file(name: str, flags: int, within: int) -> tuple[int, int]:
    """Open a file that its owner may not read. Returns the descriptor, and the mode, which is restored."""
    mode = os.stat(name, dir_fd=within, follow_symlinks=False).st_mode
    os.chmod(name, stat.S_IMODE(mode) | 0o400, dir_fd=within)
    try:
        return os.open(name, flags, dir_fd=within), mode
    finally:
        os.chmod(name, stat.S_IMODE(mode), dir_fd=within)


@contextlib.contextmanager
def exclusive_access(top: int, check: Callable[[], None]) -> Iterator[None]:
    """Only one thread of this process may change permissions in a tree. An exception from `check` stops the waiting."""
    if os.geteuid() == 0:
        yield
        return
    found = os.fstat(top)
    identity = (found.st_dev, found.st_ino)
    with _trees_changed:
        while identity in _trees_in_use:
            check()
            _trees_changed.wait(_POLL_S)
        _trees_in_use.add(identity)
    try:
        yield
    finally:
        with _trees_changed:
            _trees_in_use.discard(identity)
            _trees_changed.notify_all()


# Removal of a tree that may be hostile. It unlinks links and never follows them, enters no mounts, and copes with any
# depth. It can be stopped and started again.


_MAX_PASSES = 5
"""Passes over one folder: a user may fill it as fast as it is emptied."""


def remove_folder(path: Path, check: Callable[[], None] = lambda: None) -> None:
    """`check` is called between any two removals. An exception from it stops the removal."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        _make_writable(path.name, None, path)
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        empty_folder(top, check)
    finally:
        os.close(top)
    with contextlib.suppress(FileNotFoundError):  # another process removed it
        path.rmdir()


def empty_folder(top: int, check: Callable[[], None] = lambda: None) -> None:
    walk = TreeWalk(top)
    try:
        pending = [("", _remove_files(walk.fd, check))]
        while pending:
            name, folders = pending[-1]
            if folders:
                inner = folders.pop()
                if _enter(walk, inner):
                    pending.append((inner, _remove_files(walk.fd, check)))
                continue
            pending.pop()
            if pending:
                levels = walk.leave()
                if levels > 1:  # a user moved it: the next attempt finds what is left
                    raise OSError(errno.EAGAIN, "the folder was moved during its removal")
                check()
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(name, dir_fd=walk.fd)
    finally:
        walk.close()


def _remove_files(folder: int, check: Callable[[], None]) -> list[str]:
    """Remove everything but folders, and return the folders' names. There may be millions of files: no list of them."""
    folders: list[str] = []
    for _ in range(_MAX_PASSES):
        folders.clear()
        removed = 0
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    check()
                    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                        os.unlink(entry.name, dir_fd=folder)
                        removed += 1
        if removed == 0:  # some file systems skip names while others are being removed
            break
    return folders


def _enter(walk: TreeWalk, name: str) -> bool:
    _make_writable(name, walk.fd, None)
    try:
        walk.enter(name)
    except OSError as error:
        if error.errno not in NOT_A_FOLDER:
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=walk.fd)
        return False
    return True


def _make_writable(name: str, folder: int | None, path: Path | None) -> None:
    """Ordinary users may have removed their own permissions on a folder.

    Root needs none, and must not change the mode of a link's target.
    """
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            os.chmod(path or name, 0o700, dir_fd=folder)
