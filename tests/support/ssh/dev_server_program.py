"""The dev server's program, compiled once per state of its sources into a cache outside the clone."""

import fcntl
import hashlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "images" / "dev-server"


class CannotCompile(Exception):
    """There is no Go here, and none can be had; or the sources are wrong, which `output` then says."""


@cache
def compiled_program() -> Path:
    folder = _cache() / f"{_recipe()}-{platform.machine()}"
    program = folder / "gpudev-devserver"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _compile(program)
    return program


def find_go() -> bool:
    """Whether a Go toolchain is here or can be had."""
    tool = SOURCES.parents[1] / "tools" / "go"
    return subprocess.run([tool, "version"], capture_output=True, check=False).returncode == 0


def _compile(program: Path) -> None:
    if not find_go():
        raise CannotCompile("there is no Go toolchain here, and none could be installed (see tools/go)")
    done = subprocess.run([SOURCES / "build", program], capture_output=True, text=True, check=False)
    # With a toolchain, a program that does not compile is a failure and nothing to skip.
    assert done.returncode == 0, done.stderr


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gpu-dev" / "dev-server"


def _recipe() -> str:
    digest = hashlib.sha256()
    files = [*SOURCES.rglob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum", SOURCES / "build"]
    for path in sorted(files):
        if not path.name.endswith("_test.go"):
            digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]
