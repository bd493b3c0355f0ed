"""One embedded system for all who leave it as they found it, and nothing left of it afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.system.embedded_system import System


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = Path(tmp_path_factory.mktemp("home"))
    running = System.start(home)
    yield running
    running.stop()
    assert running.processes_with(str(home)) == [], "processes were left behind"


@pytest.fixture
def clean(system: System) -> Iterator[System]:
    """The system with all GPUs free before and after."""
    yield system
    system.run("cancel", "--all", "--yes")
