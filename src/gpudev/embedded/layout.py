"""Files and folders of the embedded system, below one home folder."""

import json
import os
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any


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
        """What runs here, for whoever wants to find it; `up` writes it when everything answered."""
        return self.run / "system.json"

    @property
    def last_nodes_file(self) -> Path:
        """Which nodes file the last `up` was given: reservations belong to its nodes, so the next `up` uses it too."""
        return self.home / "nodes.json"

    @property
    def supervisor_lock(self) -> Path:
        """Held as long as a supervisor lives: never two."""
        return self.run / "supervisor.lock"

    @property
    def command_lock(self) -> Path:
        """Held while an `up` or a `down` is at work: they take turns."""
        return self.run / "command.lock"

    @property
    def folder_identity(self) -> Path:
        """Which folder `run` was when this was written: a copy of it carries the word of another."""
        return self.run / "place"

    def pid_file(self, name: str) -> Path:
        return self.run / f"{name}.pid"

    def log_file(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def make_folders(self) -> None:
        """Root's home of the system may be crossed by the users it runs parts as; nobody else may enter anything."""
        self.home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        for folder in (self.run, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)


def newest_migration() -> str:
    """By which one version's state is told from another's, without loading what migrates."""
    folder = files("gpudev.adapters.postgres").joinpath("migrations")
    return max(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))


def write_json(path: Path, value: dict[str, Any], *, mode: int = 0o600) -> None:
    """A reader sees the old file or the new one, never half of it."""
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
    """None: there is no such file, or it is not ours to read as an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None
