"""Disks through the whole system on Kubernetes: the client asks, AWS as our stub plays it has the volumes, and a real
control plane binds them. No CSI driver runs here: nothing is really attached or mounted."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpudev.adapters.kubernetes.objects.labels import home_volume_name
from gpudev.domain.disks.operations import SnapshotStatus
from gpudev.embedded.postgres import EmbeddedPostgres
from support.clouds.aws_stub import AwsStub
from support.kubernetes.api import KubeApi, Object
from support.kubernetes.control_plane import Cluster
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.whole_system import Job, KubeSystem, fresh_database, system_on

pytestmark = pytest.mark.slow
ZONE_LABEL = "topology.ebs.csi.aws.com/zone"


@pytest.fixture
async def aws() -> AsyncIterator[AwsStub]:
    stub = AwsStub()
    await stub.start()
    yield stub
    await stub.close()


@pytest.fixture
async def nodes(fake_nodes: FakeNodes) -> dict[str, str]:
    """By zone."""
    names = {}
    for zone in ("us-east-2a", "us-east-2b"):
        names[zone] = await fake_nodes.add(zone, gpus=8, gpu_type="h100", zone=zone, labels={ZONE_LABEL: zone})
    return names


@pytest.fixture
async def system(
    kube: Cluster,
    kube_api: KubeApi,
    namespace: str,
    postgres: EmbeddedPostgres,
    aws: AwsStub,
    nodes: dict[str, str],
    tmp_path: Path,
) -> AsyncIterator[KubeSystem]:
    settings = {"GPU_DEV_CLOUD": "aws", "AWS_REGION": "us-east-2", "GPU_DEV_DISK_POLL_EVERY": "0.2"}
    async with (
        fresh_database(postgres) as database,
        system_on(
            kube.kubeconfig, kube_api, database, tmp_path, namespace=namespace, **aws.environment(), **settings
        ) as running,
    ):
        await running.sees_nodes(*nodes.values())
        yield running
        await running.clear()


async def _volume_of(system: KubeSystem, job: Job) -> Object:
    return await system.api.get("persistentvolumes", home_volume_name(job["pod_name"]))


async def _finish_snapshots(system: KubeSystem, aws: AwsStub) -> None:
    """The processor looks at them now and then; here somebody does at once."""
    for snapshot in aws.account.snapshots.values():
        snapshot.state = "completed"
    for record in await system.stores.disk_operations.list_pending_snapshots():
        settled = replace(record, status=SnapshotStatus.COMPLETED)
        await system.stores.disk_operations.finish_snapshot(settled, now=datetime.now(UTC))


async def test_a_disk_is_there_or_the_reason_is_and_it_comes_back_next_time_also_in_another_zone(
    system: KubeSystem, aws: AwsStub, nodes: dict[str, str], fake_nodes: FakeNodes
) -> None:
    aws.denied.add("ec2:CreateVolume")
    refused = await system.submit("--gpus", "2", "--disk", "data")
    failed = await system.until(refused, "failed")
    assert "its disk 'data' could not be made ready" in failed["failure_reason"]
    assert "ec2:CreateVolume" in failed["failure_reason"]
    await system.released(refused)
    assert await system.pods() == {}, "never scratch space instead"
    aws.denied.clear()

    first = await system.reserve("--gpus", "2", "--disk", "data")
    [volume] = aws.account.volumes.values()
    persistent = await _volume_of(system, first)
    assert persistent["spec"]["csi"] == {
        "driver": "ebs.csi.aws.com",
        "volumeHandle": volume.volume_id,
        "fsType": "ext4",
    }
    assert [share["node"] for share in first["nodes"]] == [nodes[volume.zone]], "made where it is first used"
    aws.account.attach(volume.volume_id)  # as the driver would

    await system.run("cancel", first["job_id"], "--yes")
    await system.see(first, lambda row: row.status.is_terminal, "it did not end")
    await system.api.wait_gone("persistentvolumes", home_volume_name(first["pod_name"]), None)
    assert aws.account.snapshots == {}, "nobody takes a snapshot of what is still attached"
    aws.account.detach(volume.volume_id)
    await system.released(first)
    [snapshot] = aws.account.snapshots.values()
    assert snapshot.volume_id == volume.volume_id
    await _finish_snapshots(system, aws)
    said, _ = await system.run("disk", "show", "data")
    assert "Contents: unknown." in said, "no pod really runs here, so nobody could look"

    second = await system.reserve("--gpus", "2", "--disk", "data")
    assert (await _volume_of(system, second))["spec"]["csi"]["volumeHandle"] == volume.volume_id
    await system.run("cancel", second["job_id"], "--yes")
    await system.released(second)
    await _finish_snapshots(system, aws)

    await fake_nodes.cordon(nodes[volume.zone])
    [elsewhere] = [zone for zone in nodes if zone != volume.zone]
    await system.sees_nodes(nodes[elsewhere])
    third = await system.reserve("--gpus", "2", "--disk", "data")
    assert [share["node"] for share in third["nodes"]] == [nodes[elsewhere]]
    handle = (await _volume_of(system, third))["spec"]["csi"]["volumeHandle"]
    moved = aws.account.volumes[handle]
    assert moved.zone == elsewhere
    assert moved.snapshot_id in aws.account.snapshots, "with what was on it"
    assert volume.volume_id not in aws.account.volumes, "the one it left is gone"
