"""The user's own files: API keys, preferences and other small JSON files. File errors become LocalError."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpudev import credentials_file
from gpudev.credentials_file import Credential
from gpudev.sdk.errors import LocalError, Unauthenticated

__all__ = [
    "API_URL",
    "KEY_VARIABLE",
    "Credential",
    "Preferences",
    "check_key",
    "file_lock",
    "find_credential",
    "load_preferences",
    "read_object",
    "remove_credential",
    "store_credential",
    "store_credential_locked",
    "write_object",
]
KEY_VARIABLE = "GPU_DEV_API_KEY"
"""Overrides the stored key."""


@contextmanager
def _local_errors() -> Iterator[None]:
    try:
        yield
    except credentials_file.FileUnusable as error:
        raise LocalError(error.message, error.next_step) from error


find_credential = _local_errors()(credentials_file.find_credential)
store_credential = _local_errors()(credentials_file.store_credential)
store_credential_locked = _local_errors()(credentials_file.store_credential_locked)
remove_credential = _local_errors()(credentials_file.remove_credential)
read_object = _local_errors()(credentials_file.read_object)
write_object = _local_errors()(credentials_file.write_object)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    with _local_errors(), credentials_file.file_lock(path):
        yield


def check_key(text: str, where: str) -> str:
    """The key, if it is valid in an HTTP header."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise Unauthenticated(f"{where} is not a valid API key", "Run `gpu-dev login`")
    return key


# Preferences (config.json).
#
# `api_url` is stored per region; all other settings apply to every region. `api_address` chooses the address.

API_URL = "api_url"
_PLAIN_TYPES: dict[str, type | tuple[type, ...]] = {
    "github_user": str,
    "default_gpu_type": str,
    "default_hours": (int, float),
    "default_disk": str,
    "ssh_config": str,
    "dotfiles": str,
    "startup_script": str,
    "env_file": str,
}


class Preferences(NamedTuple):
    github_user: str | None = None
    default_gpu_type: str | None = None
    default_hours: float | None = None
    default_disk: str | None = None
    ssh_config: str | None = None
    """off: `reserve` does not change ssh's configuration."""
    dotfiles: str | None = None
    """A git repository for every new dev server."""
    startup_script: str | None = None
    env_file: str | None = None
    """Files on this machine, read for every new dev server."""
    api_urls: tuple[tuple[str, str], ...] = ()
    """By region."""

    def api_url(self, region: str) -> str | None:
        return dict(self.api_urls).get(region)


def load_preferences(path: Path) -> Preferences:
    data = read_object(path)
    for name, kind in _PLAIN_TYPES.items():
        value = data.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise LocalError(f"{path}: invalid {name} {value!r}", f"Set it again: `gpu-dev config set {name} VALUE`")
    urls = data.get(API_URL) or {}
    if not isinstance(urls, dict) or not all(isinstance(url, str) for url in urls.values()):
        raise LocalError(f"{path}: invalid {API_URL} (expected one address per region)", "Fix it or move the file away")
    return Preferences(**{name: data.get(name) for name in _PLAIN_TYPES}, api_urls=tuple(urls.items()))
