"""Replacing the machines of Auto Scaling groups: once, however often it is asked for."""

import pytest

from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.domain.errors import ClusterError, NotFound, Unavailable
from gpudev.ports.cloud import RefreshState
from support.clouds.aws_stub import AwsStub, Fault, Reset

GROUP = "pytorch-gpu-dev-gpu-nodes-t4"


@pytest.fixture(autouse=True)
def group(stub: AwsStub) -> None:
    stub.account.give_group(GROUP, desired=3, in_service=2, starting=1)


async def test_a_groups_machines_are_told_by_their_names(cloud: AwsCloud, stub: AwsStub) -> None:
    stub.account.give_group(f"{GROUP}-spot", desired=1, in_service=1)
    assert await cloud.machines(GROUP) == sorted(stub.account.groups[GROUP].ids)
    with pytest.raises(NotFound, match="gpu-nodes-h100"):
        await cloud.machines("pytorch-gpu-dev-gpu-nodes-h100")


async def test_a_group_that_is_not_there_is_said_to_be_none(cloud: AwsCloud) -> None:
    with pytest.raises(NotFound, match="no Auto Scaling group named 'pytorch-gpu-dev-gpu-nodes-h100'"):
        await cloud.last_refresh("pytorch-gpu-dev-gpu-nodes-h100")


async def test_machines_are_replaced_with_what_was_asked_for(cloud: AwsCloud, stub: AwsStub) -> None:
    assert await cloud.last_refresh(GROUP) is None
    begun = await cloud.ensure_refresh(GROUP, keep_percent=0, warmup_seconds=300)
    assert (begun.state, begun.percent) == (RefreshState.RUNNING, 0)
    [refreshed] = stub.account.groups[GROUP].refreshes
    assert refreshed.preferences == {"MinHealthyPercentage": "0", "InstanceWarmup": "300"}
    assert begun.refresh_id == refreshed.refresh_id


async def test_asking_twice_replaces_nothing_twice(cloud: AwsCloud, stub: AwsStub) -> None:
    begun = await cloud.ensure_refresh(GROUP, keep_percent=0, warmup_seconds=300)
    assert (await cloud.ensure_refresh(GROUP, keep_percent=0, warmup_seconds=300)).refresh_id == begun.refresh_id
    assert len(stub.account.groups[GROUP].refreshes) == 1


async def test_an_answer_that_was_lost_replaces_nothing_twice(cloud: AwsCloud, stub: AwsStub) -> None:
    lost = Fault(Reset(after_the_effect=True), lambda request: request.is_change)
    with stub.faulty(lost), pytest.raises((Unavailable, ClusterError)):
        await cloud.ensure_refresh(GROUP, keep_percent=0, warmup_seconds=300)
    await cloud.ensure_refresh(GROUP, keep_percent=0, warmup_seconds=300)
    assert len(stub.account.groups[GROUP].refreshes) == 1


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("Pending", RefreshState.RUNNING),
        ("InProgress", RefreshState.RUNNING),
        ("Baking", RefreshState.RUNNING),
        ("Cancelling", RefreshState.RUNNING),
        ("RollbackInProgress", RefreshState.RUNNING),
        ("Successful", RefreshState.DONE),
        ("Failed", RefreshState.FAILED),
        ("Cancelled", RefreshState.FAILED),
        ("RollbackSuccessful", RefreshState.FAILED),
        ("RollbackFailed", RefreshState.FAILED),
    ],
)
async def test_every_status_of_aws_means_something(
    cloud: AwsCloud, stub: AwsStub, status: str, state: RefreshState
) -> None:
    await cloud.ensure_refresh(GROUP, keep_percent=0, warmup_seconds=300)
    newest = stub.account.groups[GROUP].refreshes[0]
    newest.status, newest.percent, newest.reason = status, 40, "because"
    told = await cloud.last_refresh(GROUP)
    assert told is not None
    assert (told.state, told.percent, told.detail) == (state, 40, f"{status}: because")
