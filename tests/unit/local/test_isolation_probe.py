"""Finding the isolation that works here."""

from pathlib import Path

import pytest

from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.machine.isolation_probe import probe_isolation
from support.system.full_disk import room_for


@pytest.mark.skipif(not linux.IS_LINUX, reason="elsewhere there is only one mode")
def test_a_full_disk_does_not_weaken_the_isolation(tmp_path: Path) -> None:
    with room_for(1024), pytest.raises(OSError, match="File too large"):
        probe_isolation(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
