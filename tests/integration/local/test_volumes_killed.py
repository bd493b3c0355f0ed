"""Killed at any moment, work on disks leaves the user's bytes whole and is done when it is asked for again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import SUPPORT, TESTS

SCRIPTS = SUPPORT / "local"


@pytest.mark.slow
@pytest.mark.parametrize("work", ["create", "clone", "snapshot", "tag", "remove-volume", "remove-snapshot"])
def test_killed_before_any_file_operation_it_is_whole_and_succeeds_when_asked_again(work: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "killed_volume_work.py"), str(tmp_path), work],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) >= 10
