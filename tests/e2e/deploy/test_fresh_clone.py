"""A fresh copy of this repository, in a folder with a space in its name: `make up`, again, and `make down`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.ports import free_port
from support.system.machine import Machine

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
]
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "dist", "build")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "a clone", ignore=_NOT_COPIED))


def run(clone: Path, environment: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_from_nothing_to_a_command_in_a_dev_server_and_back(clone: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"GPU_DEV_API_PORT": str(free_port()), "CI": "true"})
    machine.person.mkdir()
    # Its own home, but the package cache and the configuration of whoever runs this.
    environment = machine.environment | {
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
        "PYENV_ROOT": os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    (clone / ".venv").mkdir()  # somebody pressed Ctrl-C the last time
    (clone / ".venv" / ".unfinished").touch()
    try:
        up = run(clone, environment, "make", "up")
        assert up.returncode == 0, up.stdout + up.stderr
        assert "Hello from gpu-dev-" in up.stdout
        assert "/docs" in up.stdout
        assert "make down" in up.stdout

        again = run(clone, environment, "make", "up")
        assert again.returncode == 0, again.stdout + again.stderr
        assert "already running" in again.stdout
        assert "is still active" in again.stdout

        listed = run(clone, environment, "./gpu-dev", "list")
        assert listed.stdout.count("first") == 1, "the second one made no second server"
    finally:
        down = run(clone, environment, "make", "down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert machine.processes() == []

    (tmp_path / "gpu-dev").symlink_to(clone / "gpu-dev")
    assert run(tmp_path, environment, "./gpu-dev", "--version").stdout.startswith("gpu-dev "), "through a link too"
    compiled = list((clone / "src").rglob("*.pyc"))
    assert len(compiled) >= len(list((clone / "src").rglob("*.py"))), "bytecode is there whatever the environment says"
    again = run(clone, environment, "tools/bootstrap", "server")
    assert (again.returncode, again.stdout + again.stderr) == (0, ""), "nothing is left to do"


def test_make_help_names_every_command() -> None:
    done = run(ROOT, dict(os.environ), "make", "help")
    for name in ("up", "down", "test", "check", "bench", "format", "lock", "clean"):
        assert f"make {name} " in done.stdout


def test_ci_runs_make_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
