"""The server's image as a folder: the virtual environment that its Containerfile makes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "images" / "server" / "Containerfile"


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtual environment that the image holds; answers its bin folder."""
    folder = tmp_path_factory.mktemp("image")
    build = [str(ROOT / "images" / "server" / "build"), str(folder / "dist")]
    subprocess.run(build, env={**os.environ, "PYTHON": sys.executable}, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    [wheel] = (folder / "dist").glob("*.whl")
    [extras] = re.findall(r'"\$\{wheel\}\[(\S+)\]"', CONTAINERFILE.read_text())
    python = str(folder / "venv" / "bin" / "python")
    install = ["install", "-q", "--constraint", str(folder / "dist" / "versions.txt"), f"{wheel}[{extras}]"]
    uv = [sys.executable, "-m", "uv", "pip"]
    for attempt in ([*uv, *install, "--python", python, "--offline"], [*uv, *install, "--python", python]):
        done = subprocess.run(
            attempt, env={**os.environ, "UV_SYSTEM_CERTS": "1"}, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
    else:
        pytest.skip(f"NOT TESTED: the image's packages can be had nowhere: {done.stderr[-500:]}")
    [gone] = re.findall(r"pip uninstall --yes (.*?) pip ", CONTAINERFILE.read_text())
    subprocess.run([*uv, "uninstall", "-q", "--python", python, *gone.split()], check=True, capture_output=True)
    return folder / "venv" / "bin"
