"""The file with a person's API keys, one per API address: read and written by the client and by `gpu-dev up`.

It is JSON, like the person's other small files, for the owner's eyes only, and written whole or not at all.
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
    """What is wrong with a file, in a sentence, and what to do about it. `next_step` is a sentence too, or empty."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class Credential(NamedTuple):
    api_key: str
    username: str | None = None
    expires_at: str | None = None
    """As the API said it; the API alone decides when a key has ended."""
    login: Mapping[str, str] = MappingProxyType({})
    """How it was got, so that the next one can be got in the same way: `method`, and what that method wants to know
    again. Empty: it was given to us, or to the owner of this machine."""


def find_credential(path: Path, api_url: str) -> Credential | None:
    entry = read_object(path, private=True).get(api_url)
    if not isinstance(entry, dict) or not isinstance(entry.get("api_key"), str):
        return None
    login = entry.get("login")
    return Credential(
        entry["api_key"], entry.get("username"), entry.get("expires_at"), login if isinstance(login, dict) else {}
    )


def store_credential(path: Path, api_url: str, credential: Credential) -> None:
    """Keep every other entry."""
    with file_lock(path):
        store_credential_locked(path, api_url, credential)


def store_credential_locked(path: Path, api_url: str, credential: Credential) -> None:
    """Within `file_lock`."""
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
    """Keep every other entry."""
    with file_lock(path):
        entries = read_object(path, private=True)
        if entries.pop(api_url, None) is not None:
            write_object(path, entries)


# Small JSON files of one person.


def read_object(path: Path, *, private: bool = False) -> dict[str, Any]:
    """What the file holds; an absent file holds nothing. `private`: refused while others may read it."""
    try:
        with path.open("rb") as file:
            if private and os.fstat(file.fileno()).st_mode & 0o077:
                raise FileUnusable(f"{path} can be read by others and holds a secret", f"Run `chmod 600 {path}`")
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise FileUnusable(f"{path} cannot be read: {error.strerror}") from error
    try:
        data = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise FileUnusable(f"{path} is no JSON ({error})", "Mend it or move it away") from error
    if not isinstance(data, dict):
        raise FileUnusable(f"{path} should hold a JSON object", "Mend it or move it away")
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
        raise FileUnusable(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold others off while a file is read, changed and written. The folder is the lock: it is never replaced."""
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
