"""One embedded system for all tests here, its owner as a program would be, and an API that misbehaves on demand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.fake_api import KEY, FakeApi
from gpudev import GpuDev
from support.system import System


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = Path(tmp_path_factory.mktemp("home"))
    running = System.start(home)
    yield running
    running.stop()
    assert running.processes_with(str(home)) == [], "processes were left behind"


@pytest.fixture
def client(system: System) -> Iterator[GpuDev]:
    """With all GPUs free afterwards."""
    found = GpuDev(env=system.environment)
    yield found
    for job in found.jobs.list():
        found.jobs.cancel(job.reservation_id)


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def asking(fake: FakeApi, tmp_path: Path) -> GpuDev:
    """A client of that API, on a machine where nothing is set."""
    return GpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)})
