"""The system comes up whatever the shell that starts it was told."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from gpudev import main
from support.system.machine import Machine


@pytest.mark.parametrize("told", [0o000, 0o077])
def test_the_server_makes_files_that_its_parts_can_reach_and_nobody_else_can_write(
    told: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(main, "cli", lambda **_: (tmp_path / "made").mkdir())
    before = os.umask(told)
    try:
        main.main()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o755


@pytest.mark.slow
def test_it_comes_up_for_somebody_whose_files_nobody_else_may_read(machine: Machine) -> None:
    """Of root's, PostgreSQL must read some, and runs as another user."""
    up = subprocess.run(
        machine.command("up"),
        env=machine.environment,
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert up.returncode == 0, up.stdout + up.stderr
