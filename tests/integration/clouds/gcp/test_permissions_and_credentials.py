"""What GCP may be asked, with which permissions, with whose credentials, and what it costs not to ask it."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from contracts.cloud_worlds import ours
from gpudev.adapters.gcp.cloud import GcpCloud
from gpudev.adapters.gcp.permissions import DISK_OPERATIONS, RECONCILE_AVAILABILITY, RECONCILE_DISKS, Permission
from gpudev.domain.errors import ClusterError
from gpudev.settings import GcpSettings, load_settings
from support.clouds.gcp_stub import GcpStub
from support.clouds.gcp_world import HASTY, StubWorld

_IMPLIED = {Permission.CREATE_SNAPSHOT, Permission.LABEL_SNAPSHOT, Permission.READ_SNAPSHOT}
"""Asked for by GCP beside others; no call is called so."""


async def _look_at_groups(world: StubWorld) -> None:
    await world.cloud.node_groups("")


async def _look_at_disks(world: StubWorld) -> None:
    await world.cloud.volumes()
    await world.cloud.snapshots()


async def _do_everything_to_disks(world: StubWorld) -> None:
    volume = await world.new_volume()
    await world.cloud.grow_volume(volume.volume_id, 20)
    await world.cloud.tag_volume(volume.volume_id, {"disk-name": "renamed"})
    snapshot = await world.new_snapshot(volume.volume_id)
    await world.complete(snapshot.snapshot_id)
    await world.cloud.find_snapshot(snapshot.snapshot_id)
    await world.cloud.find_volume(volume.volume_id)
    await world.cloud.ensure_volume(
        str(uuid4()), size_gb=20, zone=world.zone, tags=ours(), from_snapshot=snapshot.snapshot_id
    )
    await world.cloud.remove_volume(volume.volume_id)
    await world.cloud.remove_snapshot(snapshot.snapshot_id)


_PARTS = {
    "reconcile availability": (_look_at_groups, RECONCILE_AVAILABILITY),
    "reconcile disks": (_look_at_disks, RECONCILE_DISKS),
    "disk operations": (_do_everything_to_disks, DISK_OPERATIONS),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", _PARTS)
async def test_a_part_needs_its_permissions_and_no_others(stub: GcpStub, cloud: GcpCloud, part: str) -> None:
    act, allowed = _PARTS[part]
    stub.policy = allowed
    await act(StubWorld(stub, cloud))
    assert stub.actions_called == allowed - _IMPLIED


@pytest.mark.slow
@pytest.mark.parametrize("permission", sorted(DISK_OPERATIONS))
async def test_each_permission_that_lacks_is_named(stub: GcpStub, cloud: GcpCloud, permission: Permission) -> None:
    stub.denied.add(permission)
    with pytest.raises(ClusterError, match=permission):
        await _do_everything_to_disks(StubWorld(stub, cloud))


@pytest.mark.slow
async def test_another_address_than_googles_is_sent_no_credentials(stub: GcpStub, cloud: GcpCloud) -> None:
    await cloud.volumes()
    assert stub.headers
    assert not any("authorization" in headers for headers in stub.headers)


@pytest.mark.slow
async def test_another_address_needs_the_projects_name() -> None:
    cloud = GcpCloud(GcpSettings(), HASTY, "http://127.0.0.1:9")
    with pytest.raises(ClusterError, match="GPU_DEV_GCP_PROJECT"):
        await cloud.start()
    await cloud.close()


@pytest.mark.slow
async def test_credentials_that_cannot_be_read_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(missing))
    cloud = GcpCloud(GcpSettings(project="lab-1"), HASTY)
    with pytest.raises(ClusterError, match="credentials"):
        await cloud.start()
    await cloud.close()


def test_googles_packages_are_not_imported_before_a_cloud_is_started() -> None:
    program = (
        "import sys, gpudev.adapters.gcp.cloud as c; from gpudev.settings import GcpSettings;"
        "c.GcpCloud(GcpSettings());"
        "print([name for name in sys.modules if name.split('.')[0] in ('google', 'grpc', 'requests')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_settings_are_read_from_the_environment() -> None:
    settings = load_settings({"GPU_DEV_GCP_PROJECT": "lab-1", "GPU_DEV_GCP_REGION": "us-central1"})
    assert (settings.gcp.project, settings.gcp.region) == ("lab-1", "us-central1")
