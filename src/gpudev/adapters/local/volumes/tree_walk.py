"""Walks a tree that its user may change meanwhile, also where the user removed their own permissions."""

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


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    """Empty for the top."""
    identity: tuple[int, int]


class TreeWalk:
    def __init__(self, top: int) -> None:
        """`top` is closed by the caller, and must remain open as long as this is used."""
        self._top = top
        self._fd = os.dup(top)
        self._steps = [_Step("", _file_identity(top))]
        self._path: str | None = ""

    @property
    def fd(self) -> int:
        """The current folder, until the next `enter` or `leave`."""
        return self._fd

    @property
    def depth(self) -> int:
        """0 at the top."""
        return len(self._steps) - 1

    @property
    def path(self) -> str:
        """The path of the current folder, relative to the top. Empty at the top."""
        if self._path is None:
            self._path = "/".join(step.name for step in self._steps[1:])
        return self._path

    def enter(self, name: str) -> os.stat_result:
        fd = open_folder(name, self._fd)
        info = os.fstat(fd)
        self._steps.append(_Step(name, (info.st_dev, info.st_ino)))
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
        self._path = None


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
