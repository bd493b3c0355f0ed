"""The API's address: from the command line, the environment, preferences or the embedded system."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gpudev.domain.api_url import InvalidApiUrl, normalize_api_url
from gpudev.sdk.credentials import read_object
from gpudev.sdk.errors import LocalError, UsageError
from gpudev.sdk.preferences import Preferences

DEFAULT_REGION = "us-east-2"
_LOOPBACK_NAMES = ("localhost", "ip6-localhost")


class ApiAddress(NamedTuple):
    url: str
    embedded: bool
    """It is the system that this person started on this machine: we may log in by ourselves."""

    @property
    def is_local(self) -> bool:
        """On this machine, so that its keys are at hand."""
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
    """The first that is set, from the most particular to the most general. `option_name`: what its giver calls it."""
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
        # Who has never named a region has no use for one here.
        known = ", ".join(name for name, _ in preferences.api_urls)
        where = f" for {region}, only for {known}" if known else ""
        raise LocalError(
            f"no system runs on this machine, and no API address is set{where}",
            "Start one with `gpu-dev up`, or name one with `gpu-dev config set api_url URL`",
            code="no_api",
        )
    return ApiAddress(url, embedded=url == embedded_url)


def check_url(text: str, where: str) -> str:
    try:
        return normalize_api_url(text, where)
    except InvalidApiUrl as error:
        raise UsageError(error.message, error.hint) from error


def find_embedded_url(system_file: Path) -> str | None:
    """Where the system on this machine answers, if one was started and not stopped."""
    url = read_object(system_file).get("api_url")
    if url is None:
        return None
    if not isinstance(url, str):
        raise LocalError(f"{system_file} does not say where the system is", "Restart it: `gpu-dev down`, `gpu-dev up`")
    return check_url(url, f"api_url in {system_file}")


def is_supervised(supervisor_file: Path) -> bool:
    """Whether somebody starts what dies of the system on this machine again. (A number that another has by now makes
    whoever asks more patient, and nothing worse.)"""
    try:
        os.kill(int(supervisor_file.read_text(encoding="ascii").split()[0]), 0)
    except PermissionError:
        return True  # another user's
    except (OSError, ValueError, IndexError, OverflowError):
        return False
    return True


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK_NAMES or host == "::1" or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None
