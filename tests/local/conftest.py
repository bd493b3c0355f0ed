from collections.abc import AsyncIterator, Iterator

import pytest

from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.ports.clock import SystemClock
from local.harness import MODES, LocalWorld
from local.places import PLACES


@pytest.fixture(scope="session", autouse=True)
def places() -> Iterator[None]:
    yield
    PLACES.close()


@pytest.fixture(params=MODES, ids=[mode.value for mode in MODES])
def mode(request: pytest.FixtureRequest) -> IsolationMode:
    found: IsolationMode = request.param
    return found


@pytest.fixture
async def world(mode: IsolationMode) -> AsyncIterator[LocalWorld]:
    async with LocalWorld(SystemClock(), mode) as opened:
        yield opened
