"""Removes a tree that may be hostile.

It unlinks links and never follows them, enters no mounts, and copes with any depth. It can be stopped and started
again.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpudev.adapters.local.volumes.tree_walk import NOT_A_FOLDER, TreeWalk

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
