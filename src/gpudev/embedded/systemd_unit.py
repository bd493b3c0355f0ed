"""The systemd unit for `--at-boot`: a system unit for root, a user unit for others.

The unit's process only watches the supervisor; KillMode=process keeps systemd from killing the dev servers with it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpudev import settings
from gpudev.embedded.progress_output import StepFailed
from gpudev.paths import os_username

UNIT = "gpu-dev.service"
_STEP = "Start at boot"


def require_systemd() -> None:
    # systemd creates this folder when it runs as pid 1; the command may exist without it.
    if Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        return
    raise StepFailed(
        _STEP,
        "this machine does not run systemd",
        advice="Omit --at-boot, and let your service manager run `gpu-dev up --foreground` at boot.",
    )


def install_unit(home: Path, nodes_file: Path | None, port: int | None, given: Mapping[str, str]) -> list[str]:
    """Returns messages about what was done."""
    require_systemd()
    path = unit_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = unit_text(home=home, nodes_file=nodes_file, port=port, as_root=_is_root(), given=given)
    path.write_text(text, encoding="utf-8")
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", UNIT)
    messages = [f"gpu-dev starts at boot: {path} is installed and enabled."]
    if not _is_root():
        messages.append(_enable_lingering())
    return messages


def remove_unit() -> list[str]:
    require_systemd()
    path = unit_path()
    if not path.exists():
        return ["gpu-dev does not start at boot: nothing to remove."]
    _systemctl("disable", UNIT)
    path.unlink()
    _systemctl("daemon-reload")
    return [f"gpu-dev no longer starts at boot: {path} is removed."]


def unit_path() -> Path:
    if _is_root():
        return Path("/etc/systemd/system") / UNIT
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user" / UNIT


def unit_text(
    *, home: Path, nodes_file: Path | None, port: int | None, as_root: bool, given: Mapping[str, str] | None = None
) -> str:
    """`given`: settings from the command line."""
    command = [sys.executable, "-m", "gpudev.main", "up", "--foreground"]
    if nodes_file is not None:
        command += ["--nodes", str(nodes_file.resolve())]
    if port is not None:
        command += ["--port", str(port)]
    # The current settings, so that its address is the same after a boot.
    environment = {
        **settings.given_variables(os.environ),
        **(given or {}),
        "GPU_DEV_HOME": str(home),
        "HOME": str(Path.home()),
    }
    lines = [
        "[Unit]",
        "Description=gpu-dev: GPU dev servers on this machine",
        # A user's units cannot refer to it. Root's sets up networks, and may listen on an address of the machine.
        *(("Wants=network-online.target", "After=network-online.target") if as_root else ("After=network.target",)),
        "",
        "[Service]",
        *(f"Environment={_quoted(f'{variable}={value}')}" for variable, value in environment.items()),
        # $ is expanded in ExecStart=, but not in Environment=.
        f"ExecStart={' '.join(_quoted(part).replace('$', '$$') for part in command)}",
        "# Dev servers outlive the control plane.",
        "KillMode=process",
        "TimeoutStopSec=90",
        "Restart=on-failure",
        "RestartSec=1",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if as_root else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    """Quoted for systemd: % starts a specifier; otherwise like a C string."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _systemctl(*arguments: str) -> None:
    scope = [] if _is_root() else ["--user"]
    done = subprocess.run(["systemctl", *scope, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip() or f"systemctl {' '.join(arguments)} failed with exit code {done.returncode}"
        raise StepFailed(_STEP, reason, advice=f"See `systemctl {' '.join([*scope, 'status', UNIT])}`.")


def _enable_lingering() -> str:
    """Without lingering a user's units start when the user logs in, not at boot."""
    done = subprocess.run(["loginctl", "enable-linger", os_username()], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return f"{os_username()}'s services now run without a login (loginctl enable-linger)."
    return (
        f"It starts when you log in; to start it at boot, an administrator runs: loginctl enable-linger {os_username()}"
    )


def _is_root() -> bool:
    return os.geteuid() == 0
