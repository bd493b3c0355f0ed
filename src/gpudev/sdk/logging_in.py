"""The next key, got in the way the last one was, without a word to anybody: the command line knows the ways."""

import subprocess
import sys
from collections.abc import Mapping

from gpudev import paths
from gpudev.sdk import credentials
from gpudev.sdk.credentials import Credential
from gpudev.sdk.errors import Unauthenticated, Unreachable

_SECONDS = 120
_AGAIN = "Run `gpu-dev login`"
_UNREACHABLE = 7
"""How that program ends when it may work a little later."""


def log_in_again(api_url: str, env: Mapping[str, str]) -> Credential:
    """What the program has stored by then. Raises Unreachable when it may work a little later."""
    command = [sys.executable, "-m", "gpudev.cli", "login", "--again", "--json", "--api-url", api_url]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"no new key for {api_url}: {error}", sent=True) from error
    if done.returncode == 0:
        fresh = credentials.find(paths.credentials_file(env), api_url)
        if fresh is not None:
            return fresh
    why = _detail(done.stderr) or f"your key for {api_url} has ended"
    if done.returncode == _UNREACHABLE:
        raise Unreachable(why, sent=True)
    raise Unauthenticated(why, _AGAIN)


def _detail(said: bytes) -> str:
    import json

    try:
        return str(json.loads(said.splitlines()[-1])["detail"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
