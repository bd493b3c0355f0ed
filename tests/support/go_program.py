"""Programs that tests run beside ours, built from their Go modules once per machine; and texts that a module carries.

Each lies in a cache outside the clone, named after what it was built from. A variable may name one that is there
already. tests/support/builds.py builds them before the tests; those that are missing make their tests skip, loudly.

    python tests/support/go_program.py [NAME...]      builds what is missing and says where it is
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "tests" / "support" / "go_modules"


@dataclass(frozen=True)
class GoProgram:
    name: str
    package: str
    module: Path
    """The folder whose go.mod says which release it is."""
    tags: str = ""

    @property
    def variable(self) -> str:
        return f"GPU_DEV_{self.name.upper()}"

    def find(self) -> Path | None:
        place = self._place()
        return place if place.is_file() else None

    def ensure(self) -> Path:
        """Builds it if need be: a few minutes the first time, then nothing."""
        program = self._place()
        if program.is_file():
            return program
        if self.variable in os.environ:
            raise FileNotFoundError(f"{self.variable} names {program}, which is not there")
        program.parent.mkdir(parents=True, exist_ok=True)
        with (program.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.is_file():
                self._build(program)
        return program

    def _place(self) -> Path:
        if named := os.environ.get(self.variable):
            return Path(named)
        recipe = b"".join((self.module / name).read_bytes() for name in ("go.mod", "go.sum"))
        key = f"{hashlib.sha256(recipe).hexdigest()[:16]}-{platform.system()}-{platform.machine()}".lower()
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "gpu-dev" / self.name / key

    def _build(self, program: Path) -> None:
        half = program.with_name(f"{program.name}.half")
        say(f"{self.name}: building it for the tests into {program} (a few minutes, once)")
        nice = ["nice", "-n", "10"] if shutil.which("nice") else []
        command = [*nice, str(ROOT / "tools" / "go"), "build", "-o", str(half), "-ldflags", "-s -w"]
        done = subprocess.run(
            [*command, *(["-tags", self.tags] if self.tags else []), self.package],
            cwd=self.module,
            env={**os.environ, "CGO_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"go build ended with {done.returncode}:\n{done.stderr[-2000:]}")
        half.rename(program)


@dataclass(frozen=True)
class GoText(GoProgram):
    """Files of a module, one after the other. Nothing is compiled; go.sum says that they are the real ones."""

    files: tuple[str, ...] = ()

    def _build(self, program: Path) -> None:
        done = subprocess.run(
            [str(ROOT / "tools" / "go"), "mod", "download", "-json", self.package],
            cwd=self.module,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"go mod download ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        folder = Path(json.loads(done.stdout)["Dir"])
        half = program.with_name(f"{program.name}.half")
        half.write_text("".join((folder / name).read_text() for name in self.files))
        half.rename(program)


DEX = GoProgram("dex", "github.com/dexidp/dex/cmd/dex", MODULES / "dex")
"""An OpenID Connect provider that logins are tested against."""
PROMTOOL = GoProgram(
    "promtool",
    "github.com/prometheus/prometheus/cmd/promtool",
    MODULES / "promtool",
    # Without the clients of two dozen clouds that it could find its targets in: these make most of its build.
    tags="remove_all_sd",
)
"""Checks alert rules, and tests them."""
PROMETHEUS_KINDS = GoText(
    "prometheus_kinds",
    "github.com/prometheus-operator/prometheus-operator",
    MODULES / "prometheus-operator",
    files=tuple(
        f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
        for kind in ("servicemonitors", "prometheusrules")
    ),
)
"""The Prometheus operator's own definitions of the kinds that the chart makes objects of."""
PROGRAMS = {program.name: program for program in (DEX, PROMTOOL, PROMETHEUS_KINDS)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(names: list[str]) -> int:
    missing = 0
    for program in [PROGRAMS[name] for name in names] or PROGRAMS.values():
        try:
            print(program.ensure())
        except (OSError, RuntimeError) as problem:
            missing = 1
            say(f"{program.name}: {problem}")
            loud = f"CANNOT PROVIDE {program.name.upper()} (see above): the tests that need it will be SKIPPED."
            say(f"{program.name}: ########## {loud} ##########")
    return missing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
