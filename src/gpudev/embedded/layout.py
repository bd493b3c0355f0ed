"""Files and folders of the embedded system, below one home folder."""

import json
import os
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpudev.http_edge.handover_sockets import API_SOCKET, PROXY_SOCKET


@dataclass(frozen=True, slots=True)
class Layout:
    home: Path
    """The state folder of `settings`."""

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def postgres_data(self) -> Path:
        return self.home / "postgres"

    @property
    def system_file(self) -> Path:
        """Describes the running system for clients; `up` writes it when everything is ready."""
        return self.run / "system.json"

    @property
    def last_nodes_file(self) -> Path:
        """The nodes file of the last `up`: reservations belong to its nodes, so the next `up` uses it too."""
        return self.home / "nodes.json"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor, so that there is only one."""
        return self.run / "supervisor.lock"

    @property
    def command_lock(self) -> Path:
        """Held by a running `up` or `down`."""
        return self.run / "command.lock"

    @property
    def folder_identity(self) -> Path:
        """Device and inode of `run` when it was written: they differ in a copy of the folder."""
        return self.run / "place"

    @property
    def handover_sockets(self) -> tuple[Path, Path]:
        """Of API and proxy, which pass connections on to each other."""
        return self.run / API_SOCKET, self.run / PROXY_SOCKET

    def pid_file(self, name: str) -> Path:
        return self.run / f"{name}.pid"

    def log_file(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def make_folders(self) -> None:
        """Under root, the users of dev servers and of PostgreSQL may traverse the home folder, but nothing else."""
        self.home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        for folder in (self.run, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)


def newest_migration() -> str:
    """Identifies the version of the state, without importing the migrator."""
    folder = files("gpudev.adapters.postgres").joinpath("migrations")
    return max(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))


def write_json(path: Path, value: dict[str, Any], *, mode: int = 0o600) -> None:
    """Atomic: a reader gets the old file or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(mode)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """None: no such file, or not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None
