"""Walks a tree that its user may change at the same moment, and may have closed to themselves."""

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
"""What entering raises when somebody removed or replaced it since its name was read."""


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    """Empty for the top."""
    identity: tuple[int, int]


class TreeWalk:
    def __init__(self, top: int) -> None:
        """`top` stays the caller's; it must be open as long as this is used."""
        self._top = top
        self._fd = os.dup(top)
        self._steps = [_Step("", _file_identity(top))]
        self._path: str | None = ""

    @property
    def fd(self) -> int:
        """The folder it stands in, until it moves on."""
        return self._fd

    @property
    def depth(self) -> int:
        """0 at the top."""
        return len(self._steps) - 1

    @property
    def path(self) -> str:
        """From the top; empty there."""
        if self._path is None:
            self._path = "/".join(step.name for step in self._steps[1:])
        return self._path

    def enter(self, name: str) -> os.stat_result:
        fd = open_folder(name, self._fd)
        stat = os.fstat(fd)
        self._steps.append(_Step(name, (stat.st_dev, stat.st_ino)))
        self._move(fd)
        return stat

    def leave(self) -> int:
        """Back to where it was entered from: 1 level up; more where somebody moved the folder meanwhile and the way
        back is gone. The top is always found."""
        levels = 0
        while True:
            self._steps.pop()
            levels += 1
            if self._try_parent() or self._try_from_top():
                return levels

    def close(self) -> None:
        os.close(self._fd)

    def _try_parent(self) -> bool:
        """By "..": it may lead anywhere by now, but is not gone into unless it is the one."""
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
        """From the top, by the names of the way."""
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
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino


# What its owner has closed to themselves, opened up so that it can be copied.
#
# Only where we are that owner: root passes anyway, and must not change the mode of what a link might point to.


_PASSABLE = 0o500
_POLL_S = 0.2

_trees_in_use: set[tuple[int, int]] = set()
_trees_changed = threading.Condition()


def ensure_passable(folder: str | Path, within: int | None = None) -> int | None:
    """The mode it had, if that had to be changed. It must stay so as long as anything in it is opened by its name."""
    if os.geteuid() == 0:
        return None
    with contextlib.suppress(OSError):  # entering it tells
        mode = os.stat(folder, dir_fd=within, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & _PASSABLE != _PASSABLE:
            os.chmod(folder, stat.S_IMODE(mode) | _PASSABLE, dir_fd=within)
            return mode
    return None


def open_unreadable_file(name: str, flags: int, within: int) -> tuple[int, int]:
    """And its mode before, which it has again."""
    mode = os.stat(name, dir_fd=within, follow_symlinks=False).st_mode
    os.chmod(name, stat.S_IMODE(mode) | 0o400, dir_fd=within)
    try:
        return os.open(name, flags, dir_fd=within), mode
    finally:
        os.chmod(name, stat.S_IMODE(mode), dir_fd=within)


@contextlib.contextmanager
def exclusive_access(top: int, check: Callable[[], None]) -> Iterator[None]:
    """Nobody else here opens up and closes folders of this tree meanwhile. `check` may break the waiting off."""
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
