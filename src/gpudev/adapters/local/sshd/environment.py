"""The environment of a session: ours, what little the client may add, and what describes the session itself."""

import re
import sys
from collections.abc import Mapping

from gpudev.adapters.local.sshd.sshd_config import SshdConfig

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LANG = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
# How the client's terminal speaks and looks. Anything else (LD_PRELOAD, PATH, GPU_DEV_*) is not for a client to set.
_FROM_CLIENT = re.compile(rb"LANG|LANGUAGE|LC_[A-Z]+|COLORTERM|TERM_PROGRAM|TERM_PROGRAM_VERSION|NO_COLOR")
_LONGEST_VALUE = 1024


def session_environment(
    config: SshdConfig, shell: str, from_client: Mapping[bytes, bytes], facts: Mapping[str, str]
) -> dict[bytes, bytes]:
    ours = {
        "HOME": config.home,
        "USER": config.username,
        "LOGNAME": config.username,
        "SHELL": shell,
        "PATH": _PATH,
        "LANG": _LANG,
    }
    return {
        **_encoded(ours),
        **{name: value for name, value in from_client.items() if _is_allowed_from_client(name, value)},
        **_encoded(config.environment),
        **_encoded(facts),
    }


def _is_allowed_from_client(name: bytes, value: bytes) -> bool:
    return _FROM_CLIENT.fullmatch(name) is not None and len(value) <= _LONGEST_VALUE and b"\0" not in value


def _encoded(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in variables.items()
    }
