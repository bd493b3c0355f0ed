"""What `pip install gpu-dev` brings: a light client that works by itself and says what the rest needs."""

import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with what is locked and installed here; nothing is downloaded for it."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel and what it asks for, in the locked versions. Returns its bin folder."""
    folder = tmp_path_factory.mktemp("client") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    what = ["-c", str(ROOT / "locks" / "server.txt"), str(wheel)]
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    tries = [[*uv, "--offline", *what], [*uv, *what], [*pip, *what]]
    said = [_attempt(command) for command in tries[:1]]
    for command in tries[1:]:
        if said[-1] is not None:
            said.append(_attempt(command))
    assert said[-1] is None, said
    return folder / "bin"


def _attempt(command: list[str]) -> str | None:
    """None: it worked."""
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr


def run(client: Path, home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(client / "gpu-dev"), *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_wheel_holds_everything_the_server_needs_and_nothing_of_the_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    migrations = sorted(path.name for path in (ROOT / "src/gpudev/adapters/postgres/migrations").glob("*.sql"))
    assert migrations
    for name in migrations:
        assert f"gpudev/adapters/postgres/migrations/{name}" in names
    assert "gpudev/domain/catalogue.toml" in names
    assert "gpudev/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith(("gpudev/", "gpu_dev-"))]
    assert not [name for name in names if "__pycache__" in name]


def test_the_client_asks_for_three_packages(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    needed = HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    always = {line.split(">")[0].strip() for line in needed if "extra ==" not in line}
    assert always == {"click", "questionary"}
    assert any("extra == 'server'" in line and line.startswith("fastapi") for line in needed)


def test_the_client_works_by_itself(client: Path, tmp_path: Path) -> None:
    for arguments in (["--help"], ["--version"], ["reserve", "--help"], ["config", "show"]):
        done = run(client, tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    assert not (client / "uvicorn").exists()


@pytest.mark.parametrize("command", ["up", "down"])
def test_without_the_server_s_parts_it_says_what_to_install(client: Path, tmp_path: Path, command: str) -> None:
    done = run(client, tmp_path, command)
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert "pip install 'gpu-dev[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_server_s_own_command_says_so_too(client: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(client / "gpu-dev-server"), "migrate"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "pip install 'gpu-dev[server]'" in done.stderr
