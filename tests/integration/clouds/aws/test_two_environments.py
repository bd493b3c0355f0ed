"""Two environments in one account: neither sees, and so neither offers or deletes, what the other has made."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.bootstrap.cluster import open_cloud
from gpudev.ports.cloud import DISK_ID_TAG, ENVIRONMENT_TAG, OWNER_TAG, Volume
from gpudev.settings import AwsSettings, load_settings
from support.clouds.aws_stub import AwsStub
from support.clouds.aws_world import HASTY

TAGS = {OWNER_TAG: "ada", "disk-name": "data"}


@asynccontextmanager
async def open_environment(name: str) -> AsyncIterator[AwsCloud]:
    cloud = AwsCloud(AwsSettings(), HASTY, environment=name)
    await cloud.start()
    yield cloud
    await cloud.close()


@pytest.fixture
async def first(stub: AwsStub) -> AsyncIterator[AwsCloud]:
    async with open_environment("pytorch-gpu-dev") as cloud:
        yield cloud


@pytest.fixture
async def second(stub: AwsStub) -> AsyncIterator[AwsCloud]:
    async with open_environment("team-b") as cloud:
        yield cloud


async def make(cloud: AwsCloud) -> Volume:
    return await cloud.ensure_volume(str(uuid4()), size_gb=10, zone="us-east-2a", tags=TAGS)


async def test_each_sees_the_volumes_and_snapshots_that_it_made(first: AwsCloud, second: AwsCloud) -> None:
    made = {cloud: await make(cloud) for cloud in (first, second)}
    for cloud, volume in made.items():
        snapshot = await cloud.ensure_snapshot(str(uuid4()), volume.volume_id, TAGS)
        assert [one.volume_id for one in await cloud.volumes()] == [volume.volume_id]
        assert [one.snapshot_id for one in await cloud.snapshots()] == [snapshot.snapshot_id]
        [told] = await cloud.volumes()
        assert TAGS.items() <= told.tags.items()


async def test_what_was_made_before_there_were_marks_is_told_to_both_until_one_takes_it(
    first: AwsCloud, second: AwsCloud, cloud: AwsCloud
) -> None:
    old = await cloud.ensure_volume(str(uuid4()), size_gb=10, zone="us-east-2a", tags=TAGS)
    assert [one.volume_id for one in await first.volumes()] == [old.volume_id]
    assert [one.volume_id for one in await second.volumes()] == [old.volume_id]
    await second.tag_volume(old.volume_id, {DISK_ID_TAG: "4711"})
    assert await first.volumes() == []
    assert [one.tags[DISK_ID_TAG] for one in await second.volumes()] == ["4711"]


@pytest.mark.usefixtures("stub")
async def test_an_environment_is_called_after_its_groups_of_nodes() -> None:
    told = {"GPU_DEV_CLOUD": "aws", "GPU_DEV_NODE_GROUP_PREFIX": "team-b", "AWS_REGION": "us-east-2"}
    async with open_cloud(load_settings(told)) as cloud:
        assert cloud is not None
        made = await cloud.ensure_volume(str(uuid4()), size_gb=10, zone="us-east-2a", tags=TAGS)
    assert made.tags[ENVIRONMENT_TAG] == "team-b"
