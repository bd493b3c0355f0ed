"""A separate embedded system for a benchmark: own home, own state, real processes, removed at the end."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLI = [sys.executable, "-m", "gpudev.cli"]


@dataclass(frozen=True)
class Machine:
    environment: dict[str, str]
    home: Path
    api_url: str
    api_key: str

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, *arguments], env=self.environment, capture_output=True, text=True, check=True, timeout=120
        )

    def job(self, *arguments: str) -> dict[str, object]:
        answer: dict[str, object] = json.loads(self.cli(*arguments, "--json").stdout)
        return answer


@contextlib.contextmanager
def running(port: int = 7490) -> Iterator[Machine]:
    """`gpu-dev up` in a fresh home, `gpu-dev down` afterwards."""
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-") as folder:
        home = Path(folder)
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "XDG_", "AWS_"))}
        environment = {**inherited, "HOME": str(home), "GPU_DEV_HOME": str(home / "state")}
        up = [*CLI, "up", "--port", str(port), "--json"]
        done = subprocess.run(up, env=environment, capture_output=True, text=True, check=False, timeout=180)
        if done.returncode != 0:
            raise SystemExit(f"the benchmark's system did not start:\n{done.stdout}{done.stderr}")
        try:
            credentials = json.loads((home / ".gpu-dev" / "credentials").read_text())
            [(url, entry)] = credentials.items()
            yield Machine(environment, home, url, entry["api_key"])
        finally:
            subprocess.run([*CLI, "down"], env=environment, capture_output=True, check=False, timeout=120)
