"""Root tries the ordinary user's ways too: the tests of this folder once more, as nobody."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from local.harness import IS_ROOT

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.timeout(900)
@pytest.mark.skipif(not IS_ROOT, reason="whoever runs the tests is an ordinary user already")
def test_all_of_this_holds_for_an_ordinary_user_too() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 65534, 65534)
        done = subprocess.run(
            [
                *(sys.executable, str(HERE / "as_ordinary_user.py")),
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE)),
            ],
            cwd=HERE.parents[1],
            env={"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert " passed" in done.stdout
