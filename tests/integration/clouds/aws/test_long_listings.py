"""Long listings: whole, in few requests, and with less work than the AWS library takes for reading them alone."""

import time
from datetime import UTC, datetime

import pytest
from aiobotocore.session import get_session

from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.settings import AwsSettings
from support.clouds.aws_stub import AwsStub

pytestmark = pytest.mark.slow
VOLUMES, SNAPSHOTS = 2_000, 10_000


async def test_thousands_are_told_whole_and_cheaply(stub: AwsStub) -> None:
    stub.account.fill(VOLUMES, SNAPSHOTS, since=datetime(2026, 1, 1, tzinfo=UTC))
    cloud = AwsCloud(AwsSettings())
    await cloud.start()
    started = time.process_time()
    volumes, snapshots = await cloud.volumes(), await cloud.snapshots()
    ours = time.process_time() - started
    await cloud.close()
    assert {volume.volume_id for volume in volumes} == set(stub.account.volumes)
    assert {snapshot.snapshot_id for snapshot in snapshots} == set(stub.account.snapshots)
    assert len(stub.called) == VOLUMES // 1000 + SNAPSHOTS // 1000
    assert ours <= 1.2 * await _bare_listing(), "the stub's own work is in both"


async def _bare_listing() -> float:
    """What the library's own paginators take, and nothing is made of what they give."""
    count = 0
    async with get_session().create_client("ec2", region_name="us-east-2") as client:
        started = time.process_time()
        for operation, key in (("describe_volumes", "Volumes"), ("describe_snapshots", "Snapshots")):
            asked = {"OwnerIds": ["self"]} if key == "Snapshots" else {}
            pages = client.get_paginator(operation).paginate(**asked, PaginationConfig={"PageSize": 1000})
            count += sum([len(page[key]) async for page in pages])
        taken = time.process_time() - started
    assert count == VOLUMES + SNAPSHOTS
    return taken
