"""Launch spec: what the first process of a member needs to set the member up, as a file.

The zygote never reads that file. So nothing of one user stays in the memory from which the next user's dev server is
forked.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from gpudev.adapters.local.machine.isolation import IsolationMode

LOGIN = "dev"
SHELL = "/bin/bash"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """All paths are those of the host."""

    mode: IsolationMode
    uid: int
    """The uid that sessions run under, as seen inside."""
    hostname: str
    hostnames: tuple[str, ...]
    """The host names of all members, including this one. All resolve to this machine."""
    home: str
    workspace: str
    run: str
    """Keys, messages and banner: the control plane writes them, the dev server reads them."""
    host_key: str
    """The file. Its content is read once, while the host's files are still visible."""
    devices: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Paths that stay hidden even where a folder around them is shown."""
    address: str = "127.0.0.1"
    """Where the members' SSH servers listen."""
    closed_ports: tuple[int, ...] = ()
    """The control plane's ports. The SSH server forwards nothing to them."""
    has_own_network: bool = False
    """Whether it runs in a network namespace of its own."""
    resolv_conf: str | None = None
    """The text of /etc/resolv.conf inside. None: the host's."""
    cgroups: tuple[str, ...] = ()
    memory: int | None = None
    """Its share of the node's memory, in bytes: what it keeps in tmpfs is bounded by it. None: not known."""
    max_processes: int | None = None
    has_user_namespaces: bool = False
    """Whether its processes may create user namespaces."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    dotfiles: str | None = field(default=None, repr=False)
    startup_script: str | None = field(default=None, repr=False)
    """Dotfiles and start-up script are the owner's personalization. None: this member does not run it."""

    @property
    def has_personalization(self) -> bool:
        return self.dotfiles is not None or self.startup_script is not None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "LaunchSpec":
        data = json.loads(text)
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}  # another version wrote it
        lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**{**known, **lists, "mode": IsolationMode(data["mode"])})


@dataclass(frozen=True, slots=True)
class InsidePaths:
    """Paths of the folders as seen inside the dev server."""

    home: str
    workspace: str
    run: str
    tmp: str


def inside_paths(mode: IsolationMode, home: str, workspace: str, run: str, member: Path) -> InsidePaths:
    if mode.has_namespaces:
        return InsidePaths(home=f"/home/{LOGIN}", workspace="/workspace", run="/run/gpu-dev", tmp="/tmp")
    return InsidePaths(home=home, workspace=workspace, run=run, tmp=str(member / "tmp"))


def runtime_dir(uid: int) -> str:
    """XDG_RUNTIME_DIR inside its own root: a small folder in memory that only the user may enter."""
    return f"/run/user/{uid}"
