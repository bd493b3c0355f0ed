"""Writing a file whole or not at all."""

import os
import secrets
from pathlib import Path


def write_atomically(
    path: str | Path,
    text: str,
    *,
    folder: int | None = None,
    mode: int = 0o600,
    durable: bool = False,
    owner: int | None = None,
) -> None:
    """All of the text or nothing is there afterwards, also for a reader at the same moment.

    `folder`: a descriptor `path` is relative to. `durable`: also after the machine lost its power. `owner`: the uid
    that has it, if it is not ours.
    """
    draft = f"{path}.{secrets.token_hex(4)}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=folder)
    try:
        try:
            os.fchmod(fd, mode)
            if owner is not None:
                os.fchown(fd, owner, owner)
            left = text.encode()
            while left:  # a disk that fills up takes a part first and complains only about the rest
                left = left[os.write(fd, left) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(draft, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(draft, dir_fd=folder)
        raise
