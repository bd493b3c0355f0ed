"""API keys of this person, one per API address, in an owner-only file."""

from pathlib import Path
from typing import NamedTuple

from gpudev.cli import files


class Credential(NamedTuple):
    api_key: str
    username: str | None = None
    expires_at: str | None = None
    """As the API said it; the API alone decides when a key has ended."""


def find(path: Path, api_url: str) -> Credential | None:
    entry = files.read_object(path, private=True).get(api_url)
    if not isinstance(entry, dict) or not isinstance(entry.get("api_key"), str):
        return None
    return Credential(entry["api_key"], entry.get("username"), entry.get("expires_at"))


def store(path: Path, api_url: str, credential: Credential) -> None:
    """Keep every other entry."""
    with files.changing(path):
        entries = files.read_object(path, private=True)
        entries[api_url] = {
            "api_key": credential.api_key,
            "username": credential.username,
            "expires_at": credential.expires_at,
        }
        files.write_object(path, entries)
