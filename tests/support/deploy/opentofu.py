"""OpenTofu as a program: its commands, and what it says."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Tofu:
    program: Path
    folder: Path
    environment: Mapping[str, str]

    def run(self, *arguments: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def succeed(self, *arguments: str, timeout: float = 300) -> str:
        done = self.run(*arguments, timeout=timeout)
        assert done.returncode == 0, f"tofu {' '.join(arguments)}:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def outputs(self) -> dict[str, Any]:
        return {name: about["value"] for name, about in json.loads(self.succeed("output", "-json")).items()}
