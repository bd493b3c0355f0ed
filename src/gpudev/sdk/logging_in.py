"""The next key, got in the way the last one was, without a word to anybody: the command line knows the ways."""

import subprocess
import sys
from collections.abc import Mapping

from gpudev import paths
from gpudev.sdk import credentials
from gpudev.sdk.credentials import Credential
from gpudev.sdk.errors import Unauthenticated, Unreachable

_LOGIN_SECONDS = 120
_NEXT_STEP = "Run `gpu-dev login`"
_EXIT_UNREACHABLE = 7
"""How that program ends when it may work a little later."""


def log_in_again(api_url: str, env: Mapping[str, str]) -> Credential:
    """What the program has stored by then. Raises Unreachable when it may work a little later."""
    command = [sys.executable, "-m", "gpudev.cli", "login", "--again", "--json", "--api-url", api_url]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_LOGIN_SECONDS, check=False, stdin=subprocess.DEVNULL, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"no new key for {api_url}: {error}", sent=True) from error
    if done.returncode == 0:
        fresh = credentials.find_credential(paths.credentials_file(env), api_url)
        if fresh is not None:
            return fresh
    why = _detail(done.stderr) or f"your key for {api_url} has ended"
    if done.returncode == _EXIT_UNREACHABLE:
        raise Unreachable(why, sent=True)
    raise Unauthenticated(why, _NEXT_STEP)


def _detail(stderr: bytes) -> str:
    import json

    try:
        return str(json.loads(stderr.splitlines()[-1])["detail"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
