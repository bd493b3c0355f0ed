"""GCP keeps what every cloud promises, over a stub of ours that misbehaves as the real one may."""

from collections.abc import AsyncIterator

import pytest

from contracts.cloud_contract import CloudDisksContract, CloudFaultsContract, CloudViewContract, NodeGroupsContract
from gpudev.adapters.gcp.cloud import GcpCloud
from support.clouds.gcp_stub import GcpStub
from support.clouds.gcp_world import StubWorld

pytestmark = pytest.mark.slow  # importing Google's client takes seconds


class _OverTheStub:
    @pytest.fixture
    async def world(self, stub: GcpStub, cloud: GcpCloud) -> AsyncIterator[StubWorld]:
        yield StubWorld(stub, cloud)


class TestView(_OverTheStub, CloudViewContract):
    pass


class TestNodeGroups(_OverTheStub, NodeGroupsContract):
    pass


class TestDisks(_OverTheStub, CloudDisksContract):
    pass


class TestFaults(_OverTheStub, CloudFaultsContract):
    pass
