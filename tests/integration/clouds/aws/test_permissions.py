"""Each part gets by with the AWS actions that are written down for it, and needs them all."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from contracts.cloud_worlds import ours
from gpudev.adapters import aws
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.adapters.aws.permissions import (
    DISK_OPERATIONS,
    NODE_OPERATIONS,
    RECONCILE_AVAILABILITY,
    RECONCILE_DISKS,
    Action,
    iam_policy,
)
from gpudev.domain.errors import ClusterError
from support.clouds.aws_stub import AwsStub
from support.clouds.aws_stub.actions import ACTIONS
from support.clouds.aws_world import StubWorld

THE_SERVICES_LIST = {
    "autoscaling:DescribeAutoScalingGroups",
    "ec2:DescribeInstances",
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeVolumes",
    "ec2:DescribeSnapshots",
    "ec2:DescribeVolumesModifications",
}
"""What the reconciliation service asks of an administrator at most (its specification, "IAM Permissions")."""


@pytest.fixture
def world(stub: AwsStub, cloud: AwsCloud) -> StubWorld:
    return StubWorld(stub, cloud)


async def reconcile_availability(world: StubWorld) -> None:
    await world.cloud.node_groups("pytorch-gpu-dev-")


async def reconcile_disks(world: StubWorld) -> None:
    await world.cloud.volumes()
    await world.cloud.snapshots()


async def operate_disks(world: StubWorld) -> None:
    """A disk's whole life."""
    cloud = world.cloud
    volume = await world.new_volume()
    await cloud.tag_volume(volume.volume_id, {"disk-name": "renamed"})
    await cloud.grow_volume(volume.volume_id, 20)
    snapshot = await world.new_snapshot(volume.volume_id)
    await world.complete(snapshot.snapshot_id)
    await cloud.find_snapshot(snapshot.snapshot_id)
    await cloud.ensure_volume(
        str(uuid4()), size_gb=20, zone=world.zone, tags=ours(), from_snapshot=snapshot.snapshot_id
    )
    await cloud.find_volume(volume.volume_id)
    await cloud.remove_volume(volume.volume_id)
    await cloud.remove_snapshot(snapshot.snapshot_id)


async def operate_nodes(world: StubWorld) -> None:
    await world.give_group("pytorch-gpu-dev-gpu-nodes-t4", desired=1, in_service=1)
    for group in await world.cloud.node_groups("pytorch-gpu-dev-"):
        await world.cloud.machines(group.name)
        await world.cloud.ensure_refresh(group.name, keep_percent=0, warmup_seconds=300)
        await world.cloud.last_refresh(group.name)
        world.stub.account.groups.clear()  # the next caller finds none under way


PARTS = [
    pytest.param(reconcile_availability, RECONCILE_AVAILABILITY, id="reconcile availability"),
    pytest.param(reconcile_disks, RECONCILE_DISKS, id="reconcile disks"),
    pytest.param(operate_disks, DISK_OPERATIONS, id="disk operations"),
    pytest.param(operate_nodes, NODE_OPERATIONS, id="node operations"),
]


@pytest.mark.parametrize(("part", "allowed"), PARTS)
async def test_a_part_gets_by_with_exactly_what_is_written_down_for_it(
    world: StubWorld, part: Callable[[StubWorld], Awaitable[None]], allowed: frozenset[Action]
) -> None:
    world.stub.policy = frozenset(allowed)
    await part(world)
    assert world.stub.actions_called == set(allowed)


@pytest.mark.parametrize(("part", "allowed"), PARTS)
async def test_a_part_that_lacks_one_of_them_is_refused_by_its_name(
    world: StubWorld, part: Callable[[StubWorld], Awaitable[None]], allowed: frozenset[Action]
) -> None:
    for missing in sorted(allowed):
        world.stub.policy = frozenset(allowed - {missing})
        with pytest.raises(ClusterError, match=missing):
            await part(world)


def test_the_one_shots_need_no_more_than_the_specification_grants() -> None:
    assert set(RECONCILE_AVAILABILITY | RECONCILE_DISKS) <= THE_SERVICES_LIST


def test_the_one_shots_can_change_nothing() -> None:
    assert all(action.operation.startswith("Describe") for action in RECONCILE_AVAILABILITY | RECONCILE_DISKS)


def test_nothing_is_called_past_the_list_of_actions() -> None:
    """Whatever the AWS library can do is called by one line, which takes an Action."""
    callers = [path.name for path in _modules() if "getattr(client, action.method)" in path.read_text()]
    assert callers == ["client.py"]
    knowing = [path.name for path in _modules() if "boto" in path.read_text()]
    assert knowing == ["client.py"]


def test_every_action_is_called_as_the_library_calls_it() -> None:
    from botocore import xform_name
    from botocore.session import get_session

    models = {service: get_session().get_service_model(service) for service in ("ec2", "autoscaling")}
    for action in Action:
        assert action.operation in models[action.service].operation_names
        assert action.method == xform_name(action.operation)
        assert (action.service, action.operation) in ACTIONS, "the stub knows it"


def _modules() -> list[Path]:
    return sorted(Path(aws.__path__[0]).glob("*.py"))


def test_a_policy_names_the_actions_as_iam_does() -> None:
    assert json.loads(json.dumps(iam_policy(RECONCILE_DISKS)))["Statement"] == [
        {"Effect": "Allow", "Action": ["ec2:DescribeSnapshots", "ec2:DescribeVolumes"], "Resource": "*"}
    ]
