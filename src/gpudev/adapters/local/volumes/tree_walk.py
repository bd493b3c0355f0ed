"""Where a walk through a tree stands, when the tree belongs to a user who may change it at the same moment.

One folder is open at a time, however deep the tree is. Folders are entered by one name each and never through links, so
that a walk by root stays inside the tree whatever is swapped for what. It knows nothing of what the walk is for.
"""

import contextlib
import errno
import os
from dataclasses import dataclass

from gpudev.adapters.local.volumes.filesystem import open_folder

NOT_A_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What entering raises when somebody removed or replaced it since its name was read."""


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    """Empty for the top."""
    identity: tuple[int, int]


class Trail:
    def __init__(self, top: int) -> None:
        """`top` stays the caller's; it must be open as long as this is used."""
        self._top = top
        self._here = os.dup(top)
        self._way = [_Step("", _identity(top))]
        self._path: str | None = ""

    @property
    def fd(self) -> int:
        """The folder it stands in, until it moves on."""
        return self._here

    @property
    def depth(self) -> int:
        """0 at the top."""
        return len(self._way) - 1

    @property
    def path(self) -> str:
        """From the top; empty there."""
        if self._path is None:
            self._path = "/".join(step.name for step in self._way[1:])
        return self._path

    def enter(self, name: str) -> os.stat_result:
        fd = open_folder(name, self._here)
        stat = os.fstat(fd)
        self._way.append(_Step(name, (stat.st_dev, stat.st_ino)))
        self._move(fd)
        return stat

    def leave(self) -> int:
        """Back to where it was entered from: 1 level up; more where somebody moved the folder meanwhile and the way
        back is gone. The top is always found."""
        levels = 0
        while True:
            self._way.pop()
            levels += 1
            if self._try_up() or self._try_again():
                return levels

    def close(self) -> None:
        os.close(self._here)

    def _try_up(self) -> bool:
        """By "..": it may lead anywhere by now, but is not gone into unless it is the one."""
        try:
            fd = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._here)
        except OSError:
            return False
        if _identity(fd) != self._way[-1].identity:
            os.close(fd)
            return False
        self._move(fd)
        return True

    def _try_again(self) -> bool:
        """From the top, by the names of the way."""
        fd = os.dup(self._top)
        for step in self._way[1:]:
            inner = -1
            with contextlib.suppress(OSError):
                inner = open_folder(step.name, fd)
            os.close(fd)
            if inner < 0:
                return False
            fd = inner
            if _identity(fd) != step.identity:
                os.close(fd)
                return False
        self._move(fd)
        return True

    def _move(self, fd: int) -> None:
        os.close(self._here)
        self._here = fd
        self._path = None


def _identity(fd: int) -> tuple[int, int]:
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino
