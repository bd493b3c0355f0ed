"""The stub as the world of the cloud contracts."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from contracts.cloud_worlds import LONG_AGO, Listing
from gpudev.adapters.aws.client import CallLimits
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.ports.cloud import SnapshotState
from support.clouds.aws_stub import AwsStub
from support.clouds.aws_stub.faults import SERVER_ERROR
from support.clouds.stub_world import StubCloudWorld

HASTY = CallLimits(
    attempts=2,
    connect_timeout=timedelta(seconds=5),
    read_timeout=timedelta(seconds=2),
    deadline=timedelta(seconds=60),
    settle_time=timedelta(seconds=1),
)
"""Gives up soon, so that tests of what lasts end soon."""

ACTIONS = {
    Listing.GROUPS: "autoscaling:DescribeAutoScalingGroups",
    Listing.VOLUMES: "ec2:DescribeVolumes",
    Listing.SNAPSHOTS: "ec2:DescribeSnapshots",
}


def send_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: Mapping[str, str]) -> None:
    """The AWS library finds this AWS and nothing of the machine's own."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
    for name, value in {**environment, **{name: str(tmp_path / file) for name, file in files.items()}}.items():
        monkeypatch.setenv(name, value)


class StubWorld(StubCloudWorld):
    zone = "us-east-2b"
    permissions = ACTIONS
    server_error = SERVER_ERROR

    def __init__(self, stub: AwsStub, cloud: AwsCloud) -> None:
        self.stub = stub
        self.cloud = cloud

    async def give_volume(self, *, tags: Mapping[str, str], created_at: datetime = LONG_AGO, size_gb: int = 10) -> str:
        return self.stub.account.give_volume(tags, created_at=created_at, size_gb=size_gb).volume_id

    async def give_snapshot(
        self,
        volume_id: str,
        *,
        tags: Mapping[str, str],
        created_at: datetime = LONG_AGO,
        state: SnapshotState = SnapshotState.COMPLETED,
    ) -> str:
        size = self.stub.account.volumes[volume_id].size_gb
        made = self.stub.account.give_snapshot(volume_id, tags, created_at=created_at, size_gb=size, state=state.value)
        return made.snapshot_id

    async def attach(self, volume_id: str) -> str:
        return self.stub.account.attach(volume_id)

    async def detach(self, volume_id: str) -> None:
        self.stub.account.detach(volume_id)

    async def destroy_volume(self, volume_id: str) -> None:
        self.stub.account.destroy_volume(volume_id)

    async def complete(self, snapshot_id: str) -> None:
        self.stub.account.snapshots[snapshot_id].state = "completed"

    async def give_group(self, name: str, *, desired: int, in_service: int, starting: int = 0) -> None:
        self.stub.account.give_group(name, desired=desired, in_service=in_service, starting=starting)

    # --- misbehaving -----------------------------------------------------------------------------------------------

    def pages_of(self, count: int) -> None:
        self.stub.pages.limit = count

    def hide_the_new(self, requests: int) -> None:
        self.stub.account.hide_new_for = requests
