"""AWS keeps what every cloud promises also over moto's server, which others wrote: our stub is not its only judge.

moto gives everything in one page, knows neither throttling nor cut lines, grows volumes and completes snapshots at
once; what goes wrong is left to the stub.
"""

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.session import get_session
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.server import ThreadedMotoServer

from contracts.cloud_contract import CloudDisksContract, CloudViewContract, NodeGroupsContract
from contracts.cloud_worlds import LONG_AGO, CloudWorld, GroupsWorld
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.ports.cloud import SnapshotState
from gpudev.settings import AwsSettings
from support.clouds.aws_world import send_to

pytestmark = pytest.mark.slow
REGION = "us-east-2"


class Moto:
    """Its server, and clients of it that are not ours."""

    def __init__(self, address: str) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "not-asked-for",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }
        session = get_session()
        session.set_credentials(self.environment["AWS_ACCESS_KEY_ID"], self.environment["AWS_SECRET_ACCESS_KEY"])
        self.ec2 = session.create_client("ec2", region_name=REGION, endpoint_url=address)
        self.autoscaling = session.create_client("autoscaling", region_name=REGION, endpoint_url=address)
        self._address = address

    def reset(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"{self._address}/moto-api/reset", b"").close()

    def close(self) -> None:
        self.ec2.close()
        self.autoscaling.close()


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with contextlib.closing(Moto(f"http://{host}:{port}")) as moto:
        yield moto
    server.stop()


class MotoWorld(CloudWorld, GroupsWorld):
    """Things are made as any AWS program makes them; times and states that it cannot set are set inside moto."""

    cloud: AwsCloud
    zone = "us-east-2a"

    def __init__(self, moto: Moto, cloud: AwsCloud) -> None:
        self.cloud = cloud
        self._ec2, self._autoscaling = moto.ec2, moto.autoscaling
        self._inside = ec2_backends[DEFAULT_ACCOUNT_ID][REGION]

    async def give_volume(self, *, tags: Mapping[str, str], created_at: datetime = LONG_AGO, size_gb: int = 10) -> str:
        made = await asyncio.to_thread(
            self._ec2.create_volume,
            AvailabilityZone=self.zone,
            Size=size_gb,
            TagSpecifications=[{"ResourceType": "volume", "Tags": _as_tags(tags)}],
        )
        self._inside.volumes[made["VolumeId"]].create_time = created_at
        return str(made["VolumeId"])

    async def give_snapshot(
        self,
        volume_id: str,
        *,
        tags: Mapping[str, str],
        created_at: datetime = LONG_AGO,
        state: SnapshotState = SnapshotState.COMPLETED,
    ) -> str:
        specification = [{"ResourceType": "snapshot", "Tags": _as_tags(tags)}] if tags else []
        made = await asyncio.to_thread(self._ec2.create_snapshot, VolumeId=volume_id, TagSpecifications=specification)
        inside = self._inside.snapshots[made["SnapshotId"]]
        inside.start_time, inside.status = created_at, state.value
        return str(made["SnapshotId"])

    async def attach(self, volume_id: str) -> str:
        image, place = await asyncio.to_thread(self._image), {"AvailabilityZone": self.zone}
        started = await asyncio.to_thread(
            self._ec2.run_instances, ImageId=image, MinCount=1, MaxCount=1, Placement=place
        )
        machine = str(started["Instances"][0]["InstanceId"])
        await asyncio.to_thread(self._ec2.attach_volume, VolumeId=volume_id, InstanceId=machine, Device="/dev/xvdf")
        return machine

    async def detach(self, volume_id: str) -> None:
        attachment = self._inside.volumes[volume_id].attachment
        assert attachment is not None
        machine = attachment.instance.id
        await asyncio.to_thread(self._ec2.detach_volume, VolumeId=volume_id, InstanceId=machine)

    async def destroy_volume(self, volume_id: str) -> None:
        await asyncio.to_thread(self._ec2.delete_volume, VolumeId=volume_id)

    async def complete(self, snapshot_id: str) -> None:
        self._inside.snapshots[snapshot_id].status = SnapshotState.COMPLETED.value

    async def give_group(self, name: str, *, desired: int, in_service: int, starting: int = 0) -> None:
        await asyncio.to_thread(self._make_group, name, in_service + starting)
        from moto.autoscaling.models import autoscaling_backends

        group = autoscaling_backends[DEFAULT_ACCOUNT_ID][REGION].autoscaling_groups[name]
        for state in group.instance_states[in_service:]:
            state.lifecycle_state = "Pending"
        group.desired_capacity = desired

    def _image(self) -> str:
        return str(self._ec2.register_image(Name=str(uuid4()))["ImageId"])

    def _make_group(self, name: str, machines: int) -> None:
        image = self._image()
        self._autoscaling.create_launch_configuration(
            LaunchConfigurationName=name, ImageId=image, InstanceType="t2.micro"
        )
        self._autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchConfigurationName=name,
            MinSize=0,
            MaxSize=10,
            DesiredCapacity=machines,
            AvailabilityZones=[self.zone],
        )


class _OverMoto:
    @pytest.fixture
    async def world(self, moto: Moto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[MotoWorld]:
        moto.reset()
        send_to(monkeypatch, tmp_path, moto.environment)
        cloud = AwsCloud(AwsSettings())  # moto takes its time over the first answers
        await cloud.start()
        yield MotoWorld(moto, cloud)
        await cloud.close()


class TestView(_OverMoto, CloudViewContract):
    pass


class TestNodeGroups(_OverMoto, NodeGroupsContract):
    pass


class TestDisks(_OverMoto, CloudDisksContract):
    pass


def _as_tags(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
