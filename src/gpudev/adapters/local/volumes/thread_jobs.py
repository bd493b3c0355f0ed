"""Work in threads that takes long: how far it is, how it is broken off, and the system's errors in our words."""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpudev.adapters.local.volume_records import BadVolumeRecord
from gpudev.adapters.local.volumes.tree_copy import Tally
from gpudev.domain.errors import ClusterError, Unavailable

_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class Stopped(Unavailable):
    """Broken off on purpose."""


@dataclass(slots=True)
class Job:
    tally: Tally = field(default_factory=Tally)
    stopped: bool = False

    def check(self) -> None:
        """Called often by whoever does the work."""
        if self.stopped:
            raise Stopped("it was broken off and may be asked for again")


@contextlib.contextmanager
def speaking(what: str) -> Iterator[None]:
    try:
        yield
    except BadVolumeRecord as error:
        raise Unavailable(f"{what}: what was written down about it cannot be read ({error})") from error
    except OSError as error:
        kind = ClusterError if error.errno in _REFUSALS else Unavailable
        raise kind(f"{what}: {error.strerror or error}") from error


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
