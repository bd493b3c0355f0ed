"""The user's API keys and other small files; file errors become LocalError."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpudev import credentials_file
from gpudev.credentials_file import Credential
from gpudev.sdk.errors import LocalError, Unauthenticated

__all__ = [
    "KEY_VARIABLE",
    "Credential",
    "check_key",
    "file_lock",
    "find_credential",
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
