"""Personalization of a dev server: variables, a dotfiles repository, a start-up script.

Only the dev server's own user ever uses these values. They are never shown: not in logs, not in responses, not by
`repr`. An error names the variable, never its value.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpudev.domain.errors import Invalid

MAX_VARIABLES = 200
MAX_VALUE_BYTES = 32 * 1024
MAX_ENVIRONMENT_BYTES = 128 * 1024
MAX_SCRIPT_BYTES = 64 * 1024
MAX_URL_LENGTH = 500

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED_VARIABLES = frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "PWD", "OLDPWD", "SHLVL", "TERM", "MAIL", "WORKSPACE", "_"}
    | {"XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}
)
_RESERVED_PREFIXES = ("GPU_DEV_", "SSH_")
# https://HOST/PATH, ssh://[USER@]HOST[:PORT]/PATH, USER@HOST:PATH. No password: process listings would show it.
_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*"
_PATH = r"[A-Za-z0-9._~/+%@-]+"
_DOTFILES = re.compile(
    rf"https://{_HOST}(?::\d{{1,5}})?/{_PATH}"
    rf"|ssh://(?:[A-Za-z0-9._-]+@)?{_HOST}(?::\d{{1,5}})?/{_PATH}"
    rf"|[A-Za-z0-9._][A-Za-z0-9._-]*@{_HOST}:{_PATH}"
)


@dataclass(frozen=True, slots=True)
class Personalization:
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    dotfiles: str | None = field(default=None, repr=False)
    """The URL of the git repository."""
    startup_script: str | None = field(default=None, repr=False)
    """The script's text; its first line may be a shebang."""

    @property
    def is_empty(self) -> bool:
        return not self.environment and self.dotfiles is None and self.startup_script is None


NO_PERSONALIZATION = Personalization()


def check_personalization(personalization: Personalization) -> Personalization:
    """Raises Invalid."""
    _check_environment(personalization.environment)
    if personalization.dotfiles is not None:
        check_dotfiles(personalization.dotfiles)
    if personalization.startup_script is not None:
        check_startup_script(personalization.startup_script)
    return personalization


def check_variable(name: str) -> str:
    """The name of a user's variable. Raises Invalid."""
    if not _VARIABLE.fullmatch(name):
        shown = name[:80].encode("ascii", "backslashreplace").decode()
        raise Invalid(
            f"invalid variable name '{shown}' (expected letters, digits and _, at most 128)", field="environment"
        )
    if name in _RESERVED_VARIABLES or name.startswith(_RESERVED_PREFIXES):
        raise Invalid(
            f"{name} is set by the dev server itself; leave it out, or set it in your dotfiles", field="environment"
        )
    return name


def check_dotfiles(url: str) -> str:
    if len(url) > MAX_URL_LENGTH or not _DOTFILES.fullmatch(url):
        raise Invalid(
            "dotfiles must be a git repository: https://HOST/PATH, ssh://HOST/PATH or USER@HOST:PATH, no password",
            field="dotfiles",
        )
    return url


def check_startup_script(text: str) -> str:
    if not text.strip():
        raise Invalid("the start-up script is empty", field="startup_script")
    if "\0" in text or _size_bytes(text) > MAX_SCRIPT_BYTES:
        raise Invalid(
            f"the start-up script must be text of at most {MAX_SCRIPT_BYTES // 1024} KiB", field="startup_script"
        )
    return text


def _check_environment(environment: Mapping[str, str]) -> None:
    if len(environment) > MAX_VARIABLES:
        raise Invalid(f"there may be at most {MAX_VARIABLES} variables", field="environment")
    total = 0
    for name, value in environment.items():
        check_variable(name)
        size = _size_bytes(value)
        if "\0" in value or size > MAX_VALUE_BYTES:
            raise Invalid(
                f"the value of {name} must be text of at most {MAX_VALUE_BYTES // 1024} KiB", field="environment"
            )
        total += len(name) + size + 2
    if total > MAX_ENVIRONMENT_BYTES:
        raise Invalid(
            f"the variables may have at most {MAX_ENVIRONMENT_BYTES // 1024} KiB together", field="environment"
        )


def _size_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return MAX_ENVIRONMENT_BYTES + 1
