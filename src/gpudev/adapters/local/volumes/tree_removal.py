"""Removing a whole tree that may be hostile: links are unlinked and never followed, nothing mounted in it is entered,
however deep it is. It can be broken off and begun again.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpudev.adapters.local.volumes.tree_walk import NOT_A_FOLDER, TreeWalk

_MOST_PASSES = 5
"""Of one folder: somebody may be filling it as fast as it is emptied."""


def remove_folder(path: Path, check: Callable[[], None] = lambda: None) -> None:
    """`check` is called between any two removals; what it raises breaks the work off."""
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
    with contextlib.suppress(FileNotFoundError):  # somebody else removes the same
        path.rmdir()


def empty_folder(top: int, check: Callable[[], None] = lambda: None) -> None:
    trail = TreeWalk(top)
    try:
        way = [("", _remove_files(trail.fd, check))]
        while way:
            name, folders = way[-1]
            if folders:
                inner = folders.pop()
                if _enter(trail, inner):
                    way.append((inner, _remove_files(trail.fd, check)))
                continue
            way.pop()
            if way:
                levels = trail.leave()
                if levels > 1:  # somebody plays with it: what is left is found when it is begun again
                    raise OSError(errno.EAGAIN, "the folder was moved while it was being removed")
                check()
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(name, dir_fd=trail.fd)
    finally:
        trail.close()


def _remove_files(folder: int, check: Callable[[], None]) -> list[str]:
    """Everything but the folders, which are named. It may hold millions: no list of them is made."""
    folders: list[str] = []
    for _ in range(_MOST_PASSES):
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
        if removed == 0:  # some file systems pass over names while others are being removed
            break
    return folders


def _enter(trail: TreeWalk, name: str) -> bool:
    _make_writable(name, trail.fd, None)
    try:
        trail.enter(name)
    except OSError as error:
        if error.errno not in NOT_A_FOLDER:
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=trail.fd)
        return False
    return True


def _make_writable(name: str, folder: int | None, path: Path | None) -> None:
    """An ordinary user may have closed a folder to themselves. Root passes anyway, and must not change the mode of
    what a link might point to."""
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            os.chmod(path or name, 0o700, dir_fd=folder)
