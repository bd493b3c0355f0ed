"""`gpu-dev jupyter enable --install`: what it runs in the dev server, without the Internet."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpudev.domain.sessions.addons import JUPYTER_ENVIRONMENT
from gpudev.sdk.remote.remote_commands import install_jupyter_command
from support.sessions.jupyter_wheel import write_jupyter_wheel

Completed = subprocess.CompletedProcess[str]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a dev server whose package index is a folder."""
    home = tmp_path / "home"
    home.mkdir()
    write_jupyter_wheel(tmp_path)
    return home


def install(home: Path, index: Path) -> Completed:
    environment = {
        "HOME": str(home),
        "SHELL": "/bin/bash",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
    }
    return subprocess.run(
        install_jupyter_command(), env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def version(home: Path) -> str:
    program = home / JUPYTER_ENVIRONMENT / "bin" / "jupyter-lab"
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_installed_apart_from_the_systems_python_once_and_again_when_broken(home: Path, tmp_path: Path) -> None:
    first = install(home, tmp_path)
    assert first.returncode == 0, first
    assert f"Installing JupyterLab into ~/{JUPYTER_ENVIRONMENT}" in first.stdout
    assert version(home) == "99.0"
    again = install(home, tmp_path)
    assert (again.returncode, again.stdout) == (0, "JupyterLab is installed already.\n")
    # As after an update of the system's Python, or an installation that was interrupted.
    shutil.rmtree(home / JUPYTER_ENVIRONMENT / "lib")
    mended = install(home, tmp_path)
    assert mended.returncode == 0, mended
    assert version(home) == "99.0"


def test_an_index_without_it_is_an_error_with_pips_own_words(home: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = install(home, empty)
    assert done.returncode != 0
    assert "jupyterlab" in done.stderr
