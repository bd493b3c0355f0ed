"""A person's small JSON files: read with a sentence for what is wrong, written whole or not at all."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpudev.sdk.errors import LocalError


def read_object(path: Path, *, private: bool = False) -> dict[str, Any]:
    """What the file holds; an absent file holds nothing. `private`: refused while others may read it."""
    try:
        with path.open("rb") as file:
            if private and os.fstat(file.fileno()).st_mode & 0o077:
                raise LocalError(f"{path} can be read by others and holds a secret", f"Run `chmod 600 {path}`")
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}") from error
    try:
        data = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise LocalError(f"{path} is no JSON ({error})", "Mend it or move it away") from error
    if not isinstance(data, dict):
        raise LocalError(f"{path} should hold a JSON object", "Mend it or move it away")
    return data


def write_object(path: Path, data: dict[str, Any]) -> None:
    """All of it or nothing, for the owner's eyes only. A link is followed, not replaced."""
    target = path.resolve()
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        # Of a program that was killed here, or laid out by somebody else: nothing is ever written into it.
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            json.dump(data, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LocalError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold others off while a file is read, changed and written. The folder is the lock: it is never replaced."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise LocalError(f"{path.parent} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
