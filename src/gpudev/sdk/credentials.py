"""API keys of this person, as the client finds and stores them: what is wrong with their file is a LocalError."""

from gpudev import credentials_file
from gpudev.credentials_file import Credential
from gpudev.sdk.errors import Unauthenticated
from gpudev.sdk.json_files import local_errors

__all__ = [
    "KEY_VARIABLE",
    "Credential",
    "check_key",
    "find_credential",
    "remove_credential",
    "store_credential",
    "store_credential_locked",
]
KEY_VARIABLE = "GPU_DEV_API_KEY"
"""Goes before what is stored."""

find_credential = local_errors()(credentials_file.find_credential)
store_credential = local_errors()(credentials_file.store_credential)
store_credential_locked = local_errors()(credentials_file.store_credential_locked)
remove_credential = local_errors()(credentials_file.remove_credential)


def check_key(text: str, where: str) -> str:
    """A key that can stand in a header."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise Unauthenticated(f"{where} is no API key", "Run `gpu-dev login`")
    return key
