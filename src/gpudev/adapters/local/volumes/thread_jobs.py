"""Long jobs in threads: their progress, how to stop them, and the translation of their errors."""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpudev.adapters.local.volumes.tree_copy import CopyProgress
from gpudev.adapters.local.volumes.volume_layout import InvalidVolumeRecord
from gpudev.domain.errors import ClusterError, Unavailable

_PERMANENT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class JobStopped(Unavailable):
    """The job was stopped on purpose."""


@dataclass(slots=True)
class ThreadJob:
    progress: CopyProgress = field(default_factory=CopyProgress)
    stopped: bool = False

    def check(self) -> None:
        """The job calls this often. Raises JobStopped when it is to stop."""
        if self.stopped:
            raise JobStopped("the job was stopped and may be requested again")


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    try:
        yield
    except InvalidVolumeRecord as error:
        raise Unavailable(f"{what}: invalid record ({error})") from error
    except OSError as error:
        kind = ClusterError if error.errno in _PERMANENT_ERRORS else Unavailable
        raise kind(f"{what}: {error.strerror or error}") from error


@contextlib.contextmanager
def open_directory(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
