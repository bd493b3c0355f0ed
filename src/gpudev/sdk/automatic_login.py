"""Renews keys without questions: by the last login method, or as owner of the embedded system."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpudev import paths
from gpudev.sdk import user_files
from gpudev.sdk.errors import Unauthenticated, Unreachable
from gpudev.sdk.user_files import Credential

_LOGIN_SECONDS = 120
_NEXT_STEP = "Run `gpu-dev login`"
_EXIT_UNREACHABLE = 7
"""Exit code of `gpu-dev login` if a later try may succeed."""


def log_in_again(api_url: str, env: Mapping[str, str]) -> Credential:
    """The credential that `gpu-dev login --again` stored. Raises Unreachable if a later try may succeed."""
    command = [sys.executable, "-m", "gpudev.cli", "login", "--again", "--json", "--api-url", api_url]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_LOGIN_SECONDS, check=False, stdin=subprocess.DEVNULL, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"no new key for {api_url}: {error}", sent=True) from error
    if done.returncode == 0:
        renewed = user_files.find_credential(paths.credentials_file(env), api_url)
        if renewed is not None:
            return renewed
    why = _detail(done.stderr) or f"your key for {api_url} has expired"
    if done.returncode == _EXIT_UNREACHABLE:
        raise Unreachable(why, sent=True)
    raise Unauthenticated(why, _NEXT_STEP)


def _detail(stderr: bytes) -> str:
    try:
        return str(json.loads(stderr.splitlines()[-1])["detail"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


# The owner of the embedded system gets a key from `gpu-dev-server`.


_OWNER_LOGIN_SECONDS = 60
_KEY_PREFIX_LENGTH = 16
"""The public part of a key, shown in key lists."""


def log_in_as_owner(state_dir: Path, instead_of: Credential | None = None) -> Credential:
    """A new key for the owner; `instead_of` is revoked. Raises Unauthenticated if this user is not the owner, or the
    system fails."""
    if not _is_owner(state_dir):
        raise Unauthenticated(
            "the system on this machine belongs to another user",
            "Ask its owner for a key (`gpu-dev-server users add NAME`) and store it with `gpu-dev login --key-stdin`",
        )
    command = [sys.executable, "-m", "gpudev.main", "users", "ensure-owner", paths.os_username(), "--json"]
    if instead_of is not None and instead_of.username == paths.os_username() and instead_of.api_key.isprintable():
        command += ["--instead-of", instead_of.api_key[:_KEY_PREFIX_LENGTH]]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_OWNER_LOGIN_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _owner_login_failed(str(error)) from error
    if done.returncode != 0:
        raise _owner_login_failed(_last_line(done.stderr) or f"exit code {done.returncode}")
    try:
        reply = json.loads(done.stdout)
        return Credential(reply["api_key"], reply["username"], reply.get("expires_at"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _owner_login_failed("invalid response") from error


def _is_owner(state_dir: Path) -> bool:
    try:
        return state_dir.stat().st_uid == os.getuid()
    except OSError:
        return False


def _owner_login_failed(why: str) -> Unauthenticated:
    return Unauthenticated(f"the system on this machine issued no key: {why}", "Is it running? Try `gpu-dev up`")


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
