"""Where files lie: the server's state, and the files of a person who uses a client; and who that is. It opens no file.

Kept apart from the settings so that a client finds its files without loading a server's settings.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def home_dir(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or "~").expanduser()


def os_username() -> str:
    """This person's name on this machine."""
    import pwd  # few commands need it

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def state_dir(env: Mapping[str, str]) -> Path:
    """GPU_DEV_HOME, else the XDG data folder of this user."""
    if own := env.get("GPU_DEV_HOME"):
        return Path(own).expanduser()
    return _xdg_dir(env, "XDG_DATA_HOME", home_dir(env) / ".local" / "share") / "gpu-dev"


def system_file(env: Mapping[str, str]) -> Path:
    """Where the embedded system says how to reach it, while it runs."""
    return state_dir(env) / "run" / "system.json"


def supervisor_file(env: Mapping[str, str]) -> Path:
    """Where the process that keeps the embedded system running leaves its number."""
    return state_dir(env) / "run" / "supervisor.pid"


def log_dir(env: Mapping[str, str]) -> Path:
    return state_dir(env) / "logs"


def config_file(env: Mapping[str, str]) -> Path:
    return _xdg_dir(env, "XDG_CONFIG_HOME", home_dir(env) / ".config") / "gpu-dev" / "config.json"


def personal_dir(env: Mapping[str, str]) -> Path:
    """Credentials, this system's own ssh key and what it knows of hosts: for the owner's eyes only."""
    return home_dir(env) / ".gpu-dev"


def credentials_file(env: Mapping[str, str]) -> Path:
    return personal_dir(env) / "credentials"


def private_key_file(env: Mapping[str, str]) -> Path:
    """The ssh key that `gpu-dev up` makes, so that somebody without any key gets in too."""
    return personal_dir(env) / "id_ed25519"


def _xdg_dir(env: Mapping[str, str], variable: str, default: Path) -> Path:
    """The XDG rules: a value that is no absolute path counts as none."""
    value = env.get(variable, "")
    return Path(value) if value.startswith("/") else default
