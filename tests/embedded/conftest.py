"""A whole system of one's own, taken down at the end whatever happened."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine
from support.ports import free_port


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, {"GPU_DEV_API_PORT": str(free_port())})
    machine.person.mkdir()
    yield machine
    machine.run("down")
    for process in machine.processes():
        process.kill()
