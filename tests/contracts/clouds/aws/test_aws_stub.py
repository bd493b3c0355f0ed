"""AWS keeps what every cloud promises, over a stub of ours that misbehaves as the real one does."""

from collections.abc import AsyncIterator

import pytest

from contracts.cloud_contract import CloudDisksContract, CloudFaultsContract, CloudViewContract, NodeGroupsContract
from gpudev.adapters.aws.cloud import AwsCloud
from support.clouds.aws_stub import AwsStub
from support.clouds.aws_world import StubWorld


class _OverTheStub:
    @pytest.fixture
    async def world(self, stub: AwsStub, cloud: AwsCloud) -> AsyncIterator[StubWorld]:
        yield StubWorld(stub, cloud)


class TestView(_OverTheStub, CloudViewContract):
    pass


class TestNodeGroups(_OverTheStub, NodeGroupsContract):
    pass


class TestDisks(_OverTheStub, CloudDisksContract):
    pass


@pytest.mark.slow
class TestFaults(_OverTheStub, CloudFaultsContract):
    pass
