"""A disk's volume as the home of a dev server on this machine: had by it exactly as long as it is there."""

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest

from contracts.cloud_contract import is_detached
from gpudev.adapters.local.cloud import LocalCloud
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import new_disk_id
from gpudev.ports.cloud import SnapshotState, Volume
from gpudev.ports.cluster import HomeVolume, ServerSpec
from support.local.local_world import LocalWorld

pytestmark = pytest.mark.slow


@pytest.fixture
async def cloud(world: LocalWorld) -> AsyncIterator[LocalCloud]:
    cloud = LocalCloud(world.state_dir, world.clock)
    await cloud.start()
    yield cloud
    await cloud.close()


async def new_volume(cloud: LocalCloud) -> Volume:
    return await cloud.ensure_volume(str(uuid4()), size_gb=10, zone="this-machine", tags={})


def at_home(spec: ServerSpec, volume_id: str) -> ServerSpec:
    home = HomeVolume(volume_id, 10, "this-machine")
    return replace(spec, disk_id=new_disk_id(), disk_name="work", volume=home)


async def test_a_volume_is_attached_exactly_while_its_dev_server_is_there(world: LocalWorld, cloud: LocalCloud) -> None:
    volume = await new_volume(cloud)
    assert await is_detached(cloud, volume.volume_id)
    spec = at_home(world.spec(), volume.volume_id)
    seen = await world.ready(spec)
    await world.out(seen, "echo kept > ~/kept")
    found = await cloud.find_volume(volume.volume_id)
    assert found is not None
    assert found.attached_to == (spec.shares[0].node,)
    with pytest.raises(ClusterError, match="in use"):
        await cloud.remove_volume(volume.volume_id)
    async with world.nobody_watching():
        assert not await is_detached(cloud, volume.volume_id), "it runs on without us"
    await world.gone(spec.reservation_id)
    assert await is_detached(cloud, volume.volume_id)
    assert not (world.state_dir / "disks" / str(spec.disk_id)).exists(), "the disk is nowhere but on its volume"
    assert (world.state_dir / "disks" / volume.volume_id / "kept").exists()


async def test_what_was_written_is_there_on_a_volume_restored_from_a_snapshot(
    world: LocalWorld, cloud: LocalCloud
) -> None:
    volume = await new_volume(cloud)
    spec = at_home(world.spec(), volume.volume_id)
    await world.out(await world.ready(spec), "mkdir ~/locked; echo kept > ~/locked/kept; chmod 500 ~/locked")
    await world.gone(spec.reservation_id)
    snapshot = await cloud.ensure_snapshot(str(uuid4()), volume.volume_id, {})
    assert snapshot.state is SnapshotState.COMPLETED, "a small one is complete at once"
    restored = await cloud.ensure_volume(
        str(uuid4()), size_gb=10, zone="this-machine", tags={}, from_snapshot=snapshot.snapshot_id
    )
    again = at_home(world.spec(), restored.volume_id)
    seen = await world.ready(again)
    assert await world.out(seen, "cat ~/locked/kept; chmod 700 ~/locked; echo more >> ~/locked/kept") == "kept"
    await world.gone(again.reservation_id)


@pytest.mark.parametrize("volume_id", ["3e1f0a4c-6a42-4c1e-9d7f-0d8a5b1c2d3e", "../servers", ".snapshots", ""])
async def test_a_volume_that_is_not_there_is_never_made_by_starting_on_it(
    world: LocalWorld, cloud: LocalCloud, volume_id: str
) -> None:
    before = sorted(path.name for path in (world.state_dir / "disks").iterdir())
    spec = at_home(world.spec(), volume_id)
    with pytest.raises(ClusterError, match="not found"):
        await world.cluster.ensure_server(spec)
    assert sorted(path.name for path in (world.state_dir / "disks").iterdir()) == before
    await world.gone(spec.reservation_id)
