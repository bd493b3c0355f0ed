"""An AWS of our own, and the adapter that is sent to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aws.world import HASTY, send_to
from gpudev.adapters.aws.cloud import AwsCloud
from support.aws_stub import AwsStub


@pytest.fixture
async def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[AwsStub]:
    stub = AwsStub()
    await stub.start()
    send_to(monkeypatch, tmp_path, stub.environment())
    yield stub
    await stub.close()


@pytest.fixture
async def cloud(stub: AwsStub) -> AsyncIterator[AwsCloud]:
    cloud = AwsCloud(HASTY)
    await cloud.start()
    yield cloud
    await cloud.close()
