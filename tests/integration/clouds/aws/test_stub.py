"""The stub is as strict as the services it stands for, so that passing it says something."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from contracts.cloud_worlds import ours
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.adapters.aws.parsing import parse_snapshot, parse_volume
from support.clouds.aws_stub import AwsStub
from support.clouds.aws_stub.account import OTHER_OWNER_ID

ONE_TRY = AioConfig(retries={"mode": "standard", "total_max_attempts": 1})


@pytest.fixture
async def ec2(stub: AwsStub) -> AsyncIterator[Any]:
    """The AWS library's own client, without anything of ours."""
    async with get_session().create_client("ec2", region_name="us-east-2", config=ONE_TRY) as client:
        yield client


async def refused(asked: Any) -> str:
    with pytest.raises(ClientError) as caught:
        await asked
    return str(caught.value.response["Error"]["Code"])


async def test_what_the_library_reads_is_what_we_read(stub: AwsStub, cloud: AwsCloud, ec2: Any) -> None:
    stub.account.fill(30, 70, since=datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=UTC))
    stub.account.give_snapshot(next(iter(stub.account.volumes)), {}, state="pending")
    volumes = (await ec2.describe_volumes())["Volumes"]
    snapshots = (await ec2.describe_snapshots(OwnerIds=["self"]))["Snapshots"]
    assert "Iops" in volumes[0], "read by the library"
    assert {told.volume_id: told for told in await cloud.volumes()} == {
        told["VolumeId"]: parse_volume(told) for told in volumes
    }
    assert {told.snapshot_id: told for told in await cloud.snapshots()} == {
        told["SnapshotId"]: parse_snapshot(told) for told in snapshots
    }


async def test_the_library_pages_through_everything(stub: AwsStub, ec2: Any) -> None:
    stub.account.fill(37, 1, since=datetime(2026, 1, 1, tzinfo=UTC))
    pages = [page["Volumes"] async for page in ec2.get_paginator("describe_volumes").paginate(MaxResults=10)]
    assert [len(page) for page in pages] == [10, 10, 10, 7]
    assert {told["VolumeId"] for told in itertools.chain(*pages)} == set(stub.account.volumes)


async def test_pages_have_limits_and_their_tokens_belong_to_one_question(stub: AwsStub, ec2: Any) -> None:
    stub.account.fill(10, 1, since=datetime(2026, 1, 1, tzinfo=UTC))
    assert await refused(ec2.describe_volumes(MaxResults=4)) == "InvalidParameterValue"
    [first, *_] = stub.account.volumes
    assert await refused(ec2.describe_volumes(MaxResults=5, VolumeIds=[first])) == "InvalidParameterCombination"
    token = (await ec2.describe_volumes(MaxResults=5))["NextToken"]
    assert len((await ec2.describe_volumes(MaxResults=5, NextToken=token))["Volumes"]) == 5
    assert await refused(ec2.describe_volumes(MaxResults=6, NextToken=token)) == "InvalidParameterValue"
    assert await refused(ec2.describe_volumes(MaxResults=5, NextToken="made-up")) == "InvalidParameterValue"
    stub.pages.age += 1
    assert await refused(ec2.describe_volumes(MaxResults=5, NextToken=token)) == "InvalidParameterValue"


async def test_a_client_token_gives_one_volume_and_stands_for_one_request(stub: AwsStub, ec2: Any) -> None:
    wanted = {"AvailabilityZone": "us-east-2a", "Size": 5, "ClientToken": "t"}
    first, second = [await ec2.create_volume(**wanted) for _ in range(2)]
    assert first["VolumeId"] == second["VolumeId"]
    assert await refused(ec2.create_volume(**{**wanted, "Size": 6})) == "IdempotentParameterMismatch"
    await ec2.create_volume(**{**wanted, "ClientToken": "u"})
    assert len(stub.account.volumes) == 2


async def test_two_requests_for_a_snapshot_make_two(stub: AwsStub, ec2: Any) -> None:
    volume = stub.account.give_volume(ours())
    for _ in range(2):
        await ec2.create_snapshot(VolumeId=volume.volume_id)
    assert len(stub.account.snapshots) == 2


async def test_snapshots_are_found_by_owner_tag_and_volume(stub: AwsStub, ec2: Any) -> None:
    account = stub.account
    first, second = account.give_volume(ours()).volume_id, account.give_volume(ours()).volume_id
    mine = account.give_snapshot(first, {"colour": "red"}).snapshot_id
    account.give_snapshot(second, {"colour": "blue"})
    others = account.give_snapshot(first, {"colour": "red"}, owner_id=OTHER_OWNER_ID).snapshot_id

    async def found(owners: list[str], **filters: str) -> set[str]:
        named = [
            {"Name": name.replace("__", ":").replace("_", "-"), "Values": [value]} for name, value in filters.items()
        ]
        answer = await ec2.describe_snapshots(OwnerIds=owners, Filters=named)
        return {told["SnapshotId"] for told in answer["Snapshots"]}

    assert await found(["self"], tag__colour="red") == {mine}
    assert await found(["self"], volume_id=first) == {mine}
    assert await found([], tag__colour="red") == {mine, others}
    assert await found(["self"], tag__colour="red", volume_id=second) == set()
    assert await refused(found(["self"], no_such_filter="x")) == "InvalidParameterValue"


async def test_what_was_just_made_is_not_there_yet(stub: AwsStub, ec2: Any) -> None:
    stub.account.hide_new_for = 2
    made = (await ec2.create_volume(AvailabilityZone="us-east-2a", Size=5))["VolumeId"]
    assert (await ec2.describe_volumes())["Volumes"] == []
    assert await refused(ec2.describe_volumes(VolumeIds=[made])) == "InvalidVolume.NotFound"
    assert len((await ec2.describe_volumes(VolumeIds=[made]))["Volumes"]) == 1


async def test_rules_of_volumes(stub: AwsStub, ec2: Any) -> None:
    volume_id = stub.account.give_volume(ours(), size_gb=10).volume_id
    stub.account.attach(volume_id)
    assert await refused(ec2.delete_volume(VolumeId=volume_id)) == "VolumeInUse"
    assert await refused(ec2.modify_volume(VolumeId=volume_id, Size=5)) == "InvalidParameterValue"
    await ec2.modify_volume(VolumeId=volume_id, Size=20)
    assert await refused(ec2.modify_volume(VolumeId=volume_id, Size=30)) == "IncorrectModificationState"
    assert await refused(ec2.create_volume(AvailabilityZone="nowhere", Size=5)) == "InvalidZone.NotFound"
    assert await refused(ec2.create_volume(AvailabilityZone="us-east-2a")) == "MissingParameter"
    assert await refused(ec2.describe_vpcs()) == "InvalidAction"


async def test_what_else_the_reconciliation_may_ask(stub: AwsStub, ec2: Any) -> None:
    machine = stub.account.attach(stub.account.give_volume(ours()).volume_id)
    [reservation] = (await ec2.describe_instances(InstanceIds=[machine]))["Reservations"]
    assert reservation["Instances"][0]["InstanceId"] == machine
    zones = (await ec2.describe_availability_zones())["AvailabilityZones"]
    assert [zone["ZoneName"] for zone in zones] == list(stub.account.zones)


async def test_tags_from_the_start_need_the_right_to_tag(stub: AwsStub, ec2: Any) -> None:
    stub.policy = frozenset({"ec2:CreateVolume"})
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "a", "Value": "b"}]}]
    wanted = {"AvailabilityZone": "us-east-2a", "Size": 5}
    assert await refused(ec2.create_volume(**wanted, TagSpecifications=tags)) == "UnauthorizedOperation"
    await ec2.create_volume(**wanted)


async def test_who_did_not_sign_is_turned_away(stub: AwsStub) -> None:
    host, port = stub.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b"Action=DescribeVolumes&Version=2016-11-15"
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    answer = await reader.readuntil(b"</Response>")
    assert b" 403 " in answer
    assert b"MissingAuthenticationToken" in answer
    writer.close()


async def test_a_request_changed_on_its_way_is_turned_away(stub: AwsStub, ec2: Any) -> None:
    def change(request: Any, **_: Any) -> None:
        request.body = request.body.replace("Size=5", "Size=6")

    ec2.meta.events.register("before-send.ec2.CreateVolume", change)
    assert await refused(ec2.create_volume(AvailabilityZone="us-east-2a", Size=5)) == "SignatureDoesNotMatch"
