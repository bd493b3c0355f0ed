"""The API's address: from the command line, the environment, preferences or the embedded system; probes of addresses.

Few imports: `proxy-command` loads it for every ssh connection.
"""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gpudev.domain.api_url import InvalidApiUrl, normalize_api_url
from gpudev.sdk.errors import LocalError, UsageError
from gpudev.sdk.user_files import Preferences, read_object

DEFAULT_REGION = "us-east-2"
PROBE_SECONDS = 1.0
"""Covers intercontinental latency; gives up quickly behind a firewall."""
_LOOPBACK_NAMES = ("localhost", "ip6-localhost")


class ApiAddress(NamedTuple):
    url: str
    embedded: bool
    """The user's own system on this machine, where the client logs in automatically."""

    @property
    def is_local(self) -> bool:
        """On this machine, so that the user's public keys can be read."""
        return self.embedded or is_loopback(urlsplit(self.url).hostname or "")


def region_of(env: Mapping[str, str]) -> str:
    return env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or DEFAULT_REGION


def choose_address(
    option: str | None,
    env: Mapping[str, str],
    preferences: Preferences,
    embedded_url: str | None,
    option_name: str = "--api-url",
) -> ApiAddress:
    """The first that is set, most specific first. `option_name`: how messages call `option`."""
    region = region_of(env)
    if option:
        url = check_url(option, option_name)
    elif variable := env.get("GPU_DEV_API_URL"):
        url = check_url(variable, "GPU_DEV_API_URL")
    elif setting := preferences.api_url(region):
        url = check_url(setting, f"api_url for {region}")
    elif embedded_url:
        url = embedded_url
    else:
        # Mention regions only if the user has set some.
        known = ", ".join(name for name, _ in preferences.api_urls)
        where = f" for {region}, only for {known}" if known else ""
        raise LocalError(
            f"no API address is set{where}, and no system runs on this machine",
            "Set one with `gpu-dev config set api_url URL`, or start a system with `gpu-dev up`",
            code="no_api",
        )
    return ApiAddress(url, embedded=url == embedded_url)


def check_url(text: str, where: str) -> str:
    try:
        return normalize_api_url(text, where)
    except InvalidApiUrl as error:
        raise UsageError(error.message, error.hint) from error


def find_embedded_url(system_file: Path) -> str | None:
    """The address of the system on this machine; None: not started."""
    url = read_object(system_file).get("api_url")
    if url is None:
        return None
    if not isinstance(url, str):
        raise LocalError(f"{system_file} has no valid api_url", "Restart the system: `gpu-dev down`, `gpu-dev up`")
    return check_url(url, f"api_url in {system_file}")


def is_supervised(supervisor_file: Path) -> bool:
    """Whether a supervisor restarts the system on this machine. (A reused pid only makes clients wait longer.)"""
    try:
        os.kill(int(supervisor_file.read_text(encoding="ascii").split()[0]), 0)
    except PermissionError:
        return True  # another user's
    except (OSError, ValueError, IndexError, OverflowError):
        return False
    return True


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK_NAMES or host == "::1" or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def open_if_ssh(host: str, port: int, seconds: float = PROBE_SECONDS) -> socket.socket | None:
    """A connection with nothing read from it; None: not an SSH server. Raises OSError."""
    line = socket.create_connection((host, port), timeout=seconds)
    try:
        if line.recv(4, socket.MSG_PEEK) == b"SSH-":
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.settimeout(None)
            return line
    except BaseException:
        line.close()
        raise
    line.close()
    return None
