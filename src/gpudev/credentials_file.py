"""The file with a user's API keys, one per API address; the client and `gpu-dev up` read and write it.

JSON, like the user's other small files. Readable by the owner only, written atomically.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple


class FileUnusable(Exception):
    """A file cannot be used. `next_step` says what to do about it; empty if nothing is known."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class Credential(NamedTuple):
    api_key: str
    username: str | None = None
    expires_at: str | None = None
    """As sent by the API, which alone decides whether a key has expired."""
    login: Mapping[str, str] = MappingProxyType({})
    """The login method and its parameters, to renew the key in the same way. Empty: the key was entered by hand, or
    belongs to the owner of this machine."""


def find_credential(path: Path, api_url: str) -> Credential | None:
    entry = read_object(path, private=True).get(api_url)
    if not isinstance(entry, dict) or not isinstance(entry.get("api_key"), str):
        return None
    login = entry.get("login")
    return Credential(
        entry["api_key"], entry.get("username"), entry.get("expires_at"), login if isinstance(login, dict) else {}
    )


def store_credential(path: Path, api_url: str, credential: Credential) -> None:
    """Keeps all other entries."""
    with file_lock(path):
        store_credential_locked(path, api_url, credential)


def store_credential_locked(path: Path, api_url: str, credential: Credential) -> None:
    """The caller holds `file_lock`."""
    entries = read_object(path, private=True)
    entries[api_url] = {
        "api_key": credential.api_key,
        "username": credential.username,
        "expires_at": credential.expires_at,
    }
    if credential.login:
        entries[api_url]["login"] = dict(credential.login)
    write_object(path, entries)


def remove_credential(path: Path, api_url: str) -> None:
    """Keeps all other entries."""
    with file_lock(path):
        entries = read_object(path, private=True)
        if entries.pop(api_url, None) is not None:
            write_object(path, entries)


# Small JSON files of one user.


def read_object(path: Path, *, private: bool = False) -> dict[str, Any]:
    """The file's content; empty if it does not exist. `private`: raises if other users can read it."""
    try:
        with path.open("rb") as file:
            if private and os.fstat(file.fileno()).st_mode & 0o077:
                raise FileUnusable(f"{path} holds a secret and is readable by other users", f"Run `chmod 600 {path}`")
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise FileUnusable(f"{path} cannot be read: {error.strerror}") from error
    try:
        data = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise FileUnusable(f"{path} is not valid JSON ({error})", "Fix it or move it away") from error
    if not isinstance(data, dict):
        raise FileUnusable(f"{path} does not hold a JSON object", "Fix it or move it away")
    return data


def write_object(path: Path, data: dict[str, Any]) -> None:
    """Atomic, with mode 600. A symbolic link is followed, not replaced."""
    target = path.resolve()
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        # Left by a killed process, or planted by another user: never written to.
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
        raise FileUnusable(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Exclusive access while a file is read, changed and written. Locks the folder, which is never replaced."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise FileUnusable(f"{path.parent} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
