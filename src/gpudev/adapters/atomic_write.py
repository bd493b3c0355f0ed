"""Atomic write of a file."""

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
    """Readers see the old file or the whole new one, never a part.

    `folder`: a descriptor that `path` is relative to. `durable`: also after a power failure. `owner`: the uid that gets
    the file; None: ours.
    """
    draft = f"{path}.{secrets.token_hex(4)}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=folder)
    try:
        try:
            os.fchmod(fd, mode)
            if owner is not None:
                os.fchown(fd, owner, owner)
            rest = text.encode()
            while rest:  # a disk that fills up accepts a part first, and fails only at the next one
                rest = rest[os.write(fd, rest) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(draft, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(draft, dir_fd=folder)
        raise
