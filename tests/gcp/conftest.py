"""A Compute Engine of our own, and the adapter that is sent to it."""

from collections.abc import AsyncIterator

import pytest

from gcp.world import cloud_for
from gpudev.adapters.gcp.cloud import GcpCloud
from support.gcp_stub import GcpStub


@pytest.fixture
async def stub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GcpStub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    stub = GcpStub()
    await stub.start()
    yield stub
    await stub.close()


@pytest.fixture
async def cloud(stub: GcpStub) -> AsyncIterator[GcpCloud]:
    cloud = cloud_for(stub)
    await cloud.start()
    yield cloud
    await cloud.close()
