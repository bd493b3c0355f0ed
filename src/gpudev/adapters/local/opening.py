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
_LOOK_AGAIN_S = 0.2

_worked_on: set[tuple[int, int]] = set()
_changed = threading.Condition()


def open_up(folder: str | Path, within: int | None = None) -> int | None:
    """The mode it had, if that had to be changed. It must stay so as long as anything in it is opened by its name."""
    if os.geteuid() == 0:
        return None
    with contextlib.suppress(OSError):  # entering it tells
        mode = os.stat(folder, dir_fd=within, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & _PASSABLE != _PASSABLE:
            os.chmod(folder, stat.S_IMODE(mode) | _PASSABLE, dir_fd=within)
            return mode
    return None


def open_closed_file(name: str, flags: int, within: int) -> tuple[int, int]:
    """And its mode before, which it has again."""
    mode = os.stat(name, dir_fd=within, follow_symlinks=False).st_mode
    os.chmod(name, stat.S_IMODE(mode) | 0o400, dir_fd=within)
    try:
        return os.open(name, flags, dir_fd=within), mode
    finally:
        os.chmod(name, stat.S_IMODE(mode), dir_fd=within)


@contextlib.contextmanager
def alone_in(top: int, check: Callable[[], None]) -> Iterator[None]:
    """Nobody else here opens up and closes folders of this tree meanwhile. `check` may break the waiting off."""
    if os.geteuid() == 0:
        yield
        return
    found = os.fstat(top)
    identity = (found.st_dev, found.st_ino)
    with _changed:
        while identity in _worked_on:
            check()
            _changed.wait(_LOOK_AGAIN_S)
        _worked_on.add(identity)
    try:
        yield
    finally:
        with _changed:
            _worked_on.discard(identity)
            _changed.notify_all()
