"""What gpu-dev-server does before any command of its own runs."""

import os
import stat
from pathlib import Path

import pytest

from gpudev import main


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
