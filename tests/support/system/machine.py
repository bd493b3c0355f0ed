"""A machine of one's own for a whole embedded system: its state and its person's home below one folder."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from gpudev.embedded.layout import Layout
from support.process_table import command_lines, environments
from support.system.warm_programs import SERVER, run_program


@dataclass
class Machine:
    """What one person's `gpu-dev-server up` and `down` see."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(self.root / "state")

    @property
    def person(self) -> Path:
        return self.root / "person"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "XDG_"))}
        own = {"HOME": str(self.person), "GPU_DEV_HOME": str(self.layout.home)}
        return {**inherited, **own, **self.variables}

    def command(self, *arguments: str) -> list[str]:
        return [*SERVER.command, *arguments]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_program(SERVER, arguments, self.environment, timeout=120)

    def up(self, *options: str) -> dict[str, Any]:
        done = self.run("up", "--json", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def processes(self) -> list[psutil.Process]:
        """Whatever runs for this home, by what was handed to it; PostgreSQL by its working directory."""
        mark = f"\0GPU_DEV_HOME={self.layout.home}\0"
        pids = {pid for pid, words in environments() if mark in f"\0{words}"}
        pids |= {pid for pid, words in command_lines() if "postgres" in words and self._is_our_postgres(pid)}
        found = []
        for pid in sorted(pids):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _is_our_postgres(self, pid: int) -> bool:
        try:
            return psutil.Process(pid).name() == "postgres" and self._is_data_folder(pid)
        except (psutil.Error, OSError):
            return False

    def _is_data_folder(self, pid: int) -> bool:
        here = Path(f"/proc/{pid}/cwd") if Path("/proc/self").exists() else Path(psutil.Process(pid).cwd())
        return here.exists() and self.layout.postgres_data.exists() and here.samefile(self.layout.postgres_data)


@contextlib.contextmanager
def a_machine(root: Path) -> Iterator[Machine]:
    """Whatever happens on it, it is taken down at the end."""
    machine = Machine(root)
    machine.person.mkdir()
    yield machine
    machine.run("down")
    for process in machine.processes():
        process.kill()
