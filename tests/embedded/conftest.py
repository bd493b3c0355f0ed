"""A whole system of one's own, taken down at the end whatever happened."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine, a_machine
from support.ports import free_port


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with a_machine(tmp_path) as machine:
        machine.variables["GPU_DEV_API_PORT"] = str(free_port())
        yield machine
