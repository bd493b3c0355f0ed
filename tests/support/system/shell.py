"""ssh sessions of the system's own client, which outlast a fault or do not."""

import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from support.system.embedded_system import System


class Shell:
    """An ssh session that was opened before the fault, and is spoken to after it."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*command, "cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def echo(self, text: str) -> str:
        said, heard = self.process.stdin, self.process.stdout
        assert said is not None
        assert heard is not None
        said.write(text + "\n")
        said.flush()
        return heard.readline().strip()

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.terminate()


def proxied_options(system: System, job: dict[str, Any]) -> list[str]:
    """ssh options that go through the proxy, and could not go anywhere else."""
    command = f"{shlex.quote(sys.executable)} -m gpudev.cli proxy-command {job['job_id']}"
    return [*system.ssh_options(job), "-o", f"ProxyCommand={command}"]


def proxied_ssh(system: System, job: dict[str, Any], *options: str) -> list[str]:
    return ["ssh", *proxied_options(system, job), *options, "dev@nowhere.invalid"]
