"""One member of a dev server as its first process is told to set it up: values that travel through a file.

The warm process never reads that file, so that nothing of one user stays in the memory from which the next user's
dev server is forked.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpudev.adapters.local.machine.isolation import IsolationMode

LOGIN = "dev"
SHELL = "/bin/bash"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """All paths are the host's."""

    mode: IsolationMode
    uid: int
    """The uid sessions run under, as it is called inside."""
    hostname: str
    hostnames: tuple[str, ...]
    """All members' names, this one's too: they stand for this machine."""
    home: str
    workspace: str
    run: str
    """Keys, messages and greeting: the control plane writes them, the dev server reads them."""
    host_key: str
    """The file; its content is read once, before anything of the host is out of sight."""
    devices: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """What must not be seen even where a folder around it is shown."""
    address: str = "127.0.0.1"
    """Where the members' SSH servers listen."""
    closed_ports: tuple[int, ...] = ()
    """The control plane's, to which the SSH server forwards nothing."""
    cgroup: str | None = None
    max_processes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    dotfiles: str | None = field(default=None, repr=False)
    startup_script: str | None = field(default=None, repr=False)
    """The owner's own set-up, where it is to be run."""

    @property
    def has_personalization(self) -> bool:
        return self.dotfiles is not None or self.startup_script is not None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "LaunchSpec":
        data = json.loads(text)
        lists = ("hostnames", "devices", "hidden", "closed_ports")
        return cls(**{**data, "mode": IsolationMode(data["mode"]), **{name: tuple(data[name]) for name in lists}})


@dataclass(frozen=True, slots=True)
class InsidePaths:
    """Where the folders are for those inside."""

    home: str
    workspace: str
    run: str
    tmp: str


def inside_paths(mode: IsolationMode, home: str, workspace: str, run: str, member: Path) -> InsidePaths:
    if mode.has_namespaces:
        return InsidePaths(home=f"/home/{LOGIN}", workspace="/workspace", run="/run/gpu-dev", tmp="/tmp")
    return InsidePaths(home=home, workspace=workspace, run=run, tmp=str(member / "tmp"))


def runtime_dir(uid: int) -> str:
    """In a root of its own: a small folder in memory that only the user may enter."""
    return f"/run/user/{uid}"
