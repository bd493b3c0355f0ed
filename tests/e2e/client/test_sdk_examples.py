"""The SDK's examples do what they show."""

import re
import subprocess
import sys

import pytest

from gpudev import GpuDev
from support.client.sdk_examples import EXAMPLES
from support.paths import ROOT
from support.system.embedded_system import System


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_does_what_it_shows(system: System, client: GpuDev, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=system.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(EXAMPLES[name], done.stdout), done.stdout
    assert client.jobs.list() == []
