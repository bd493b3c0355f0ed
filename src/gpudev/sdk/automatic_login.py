"""The owner of the system on this machine: whoever started it may ask it for a key, through its own program."""

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

from gpudev.sdk.credentials import Credential
from gpudev.sdk.errors import Unauthenticated

_OWNER_LOGIN_SECONDS = 60
_KEY_PREFIX_LENGTH = 16
"""So much of a key is no secret: it is how lists of keys tell them."""


def owner_name() -> str:
    """This person's name on this machine."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def log_in_as_owner(state_dir: Path, instead_of: Credential | None = None) -> Credential:
    """A fresh key for the owner, whose key `instead_of` ends. Raises Unauthenticated when this person is
    not the owner, or the system does not play along."""
    if not _is_owner(state_dir):
        raise Unauthenticated(
            "the system on this machine belongs to somebody else",
            "Ask them for a key (`gpu-dev-server users add NAME`) and store it with `gpu-dev login --key-stdin`",
        )
    command = [sys.executable, "-m", "gpudev.main", "users", "ensure-owner", owner_name(), "--json"]
    if instead_of is not None and instead_of.username == owner_name() and instead_of.api_key.isprintable():
        command += ["--instead-of", instead_of.api_key[:_KEY_PREFIX_LENGTH]]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_OWNER_LOGIN_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _owner_login_failed(str(error)) from error
    if done.returncode != 0:
        raise _owner_login_failed(_last_line(done.stderr) or f"it ended with {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        return Credential(answer["api_key"], answer["username"], answer.get("expires_at"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _owner_login_failed("its answer could not be read") from error


def _is_owner(state_dir: Path) -> bool:
    try:
        return state_dir.stat().st_uid == os.getuid()
    except OSError:
        return False


def _owner_login_failed(why: str) -> Unauthenticated:
    return Unauthenticated(f"the system on this machine gave no key: {why}", "Is it running? Try `gpu-dev up`")


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
