"""What its owner has closed to themselves, opened up so that it can be copied.

Only where we are that owner: root passes anyway, and must not change the mode of what a link might point to.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

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
