"""An AWS of our own, and the adapter that is sent to it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiobotocore.endpoint import AioEndpoint

from aws.world import HASTY, send_to
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.settings import AwsSettings
from support.aws_stub import AwsStub


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the AWS library pauses between its attempts is its own affair; nobody sits through it here."""

    async def pause(self: AioEndpoint, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))

    monkeypatch.setattr(AioEndpoint, "_sleep", pause)


@pytest.fixture
async def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[AwsStub]:
    stub = AwsStub()
    await stub.start()
    send_to(monkeypatch, tmp_path, stub.environment())
    yield stub
    await stub.close()


@pytest.fixture
async def cloud(stub: AwsStub) -> AsyncIterator[AwsCloud]:
    cloud = AwsCloud(AwsSettings(), HASTY)
    await cloud.start()
    yield cloud
    await cloud.close()
