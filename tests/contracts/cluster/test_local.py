"""The local cluster keeps every cluster's promises, in every way it can keep dev servers apart."""

from collections.abc import AsyncIterator

import pytest

from contracts.cluster_contract import ClusterContract, ClusterWorld
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.ports.clock import SystemClock
from support.local.local_world import LocalWorld


@pytest.mark.slow
class TestLocalCluster(ClusterContract):
    @pytest.fixture
    async def world(self, mode: IsolationMode) -> AsyncIterator[ClusterWorld]:
        async with LocalWorld(SystemClock(), mode) as opened:
            yield opened
