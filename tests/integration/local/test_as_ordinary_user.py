"""Root tries the ordinary user's ways too: the tests of dev servers on this machine once more, as nobody."""

import os
import subprocess
import sys
import tempfile

import pytest

from support.local.local_world import IS_ROOT
from support.paths import ROOT, SUPPORT, TESTS

HERE = sorted((TESTS / "integration" / "local").glob("test_*.py"))
VOLUMES = [path for path in HERE if path.name.startswith("test_volumes")]
PARTS = {
    "dev servers": [path for path in HERE if path not in VOLUMES],
    "volumes": [*VOLUMES, TESTS / "contracts/clouds/local"],
    "contracts": [
        TESTS / "unit/local",
        TESTS / "contracts/cluster/test_local.py",
        TESTS / "contracts/sessions/test_shell_local.py",
    ],
}


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.timeout(900)
@pytest.mark.skipif(not IS_ROOT, reason="whoever runs the tests is an ordinary user already")
@pytest.mark.parametrize("part", PARTS)
def test_all_of_this_holds_for_an_ordinary_user_too(part: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 65534, 65534)
        done = subprocess.run(
            [
                *(sys.executable, str(SUPPORT / "local" / "as_ordinary_user.py")),
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *map(str, PARTS[part]),
            ],
            cwd=ROOT,
            env={
                "PATH": os.environ["PATH"],
                "HOME": home,
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HYPOTHESIS_STORAGE_DIRECTORY": f"{home}/hypothesis",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert " passed" in done.stdout
