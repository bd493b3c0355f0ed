"""Paths of the server's state and of a user's own files, and the user's name. Opens no file.

Separate from the settings, so that a client finds its files without loading the server's settings.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def home_dir(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or "~").expanduser()


def os_username() -> str:
    """The name of the current user on this machine."""
    import pwd  # few commands need it

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def state_dir(env: Mapping[str, str]) -> Path:
    """GPU_DEV_HOME, or the XDG data folder of this user."""
    if home := env.get("GPU_DEV_HOME"):
        return Path(home).expanduser()
    return _xdg_dir(env, "XDG_DATA_HOME", home_dir(env) / ".local" / "share") / "gpu-dev"


def system_file(env: Mapping[str, str]) -> Path:
    """Where the embedded system publishes its API address while it runs."""
    return state_dir(env) / "run" / "system.json"


def supervisor_file(env: Mapping[str, str]) -> Path:
    """The pid file of the supervisor of the embedded system."""
    return state_dir(env) / "run" / "supervisor.pid"


def log_dir(env: Mapping[str, str]) -> Path:
    return state_dir(env) / "logs"


def config_file(env: Mapping[str, str]) -> Path:
    return _xdg_dir(env, "XDG_CONFIG_HOME", home_dir(env) / ".config") / "gpu-dev" / "config.json"


def personal_dir(env: Mapping[str, str]) -> Path:
    """Credentials, gpu-dev's own ssh key and known hosts; readable by the owner only."""
    return home_dir(env) / ".gpu-dev"


def credentials_file(env: Mapping[str, str]) -> Path:
    return personal_dir(env) / "credentials"


def private_key_file(env: Mapping[str, str]) -> Path:
    """The ssh key that `gpu-dev up` creates, for users without a key."""
    return personal_dir(env) / "id_ed25519"


def _xdg_dir(env: Mapping[str, str], variable: str, default: Path) -> Path:
    """As XDG specifies, a value that is not an absolute path is ignored."""
    value = env.get(variable, "")
    return Path(value) if value.startswith("/") else default
