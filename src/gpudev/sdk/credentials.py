"""API keys of this person, one per API address, in an owner-only file."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpudev.sdk import json_files


class Credential(NamedTuple):
    api_key: str
    username: str | None = None
    expires_at: str | None = None
    """As the API said it; the API alone decides when a key has ended."""
    login: Mapping[str, str] = MappingProxyType({})
    """How it was got, so that the next one can be got in the same way: `method`, and what that method wants to know
    again. Empty: it was given to us, or to the owner of this machine."""


def find_credential(path: Path, api_url: str) -> Credential | None:
    entry = json_files.read_object(path, private=True).get(api_url)
    if not isinstance(entry, dict) or not isinstance(entry.get("api_key"), str):
        return None
    login = entry.get("login")
    return Credential(
        entry["api_key"], entry.get("username"), entry.get("expires_at"), login if isinstance(login, dict) else {}
    )


def store_credential(path: Path, api_url: str, credential: Credential) -> None:
    """Keep every other entry."""
    with json_files.file_lock(path):
        store_credential_locked(path, api_url, credential)


def store_credential_locked(path: Path, api_url: str, credential: Credential) -> None:
    """Within `files.changing`."""
    entries = json_files.read_object(path, private=True)
    entries[api_url] = {
        "api_key": credential.api_key,
        "username": credential.username,
        "expires_at": credential.expires_at,
    }
    if credential.login:
        entries[api_url]["login"] = dict(credential.login)
    json_files.write_object(path, entries)


def remove_credential(path: Path, api_url: str) -> None:
    """Keep every other entry."""
    with json_files.file_lock(path):
        entries = json_files.read_object(path, private=True)
        if entries.pop(api_url, None) is not None:
            json_files.write_object(path, entries)
