"""What the local cluster says when it cannot work."""

import errno
from pathlib import Path

import pytest

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.servers.state_folder import ServerFolder, ServerRecord
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import new_reservation_id
from gpudev.ports.clock import SystemClock
from support.local.local_world import NODES, LocalWorld


async def test_a_state_folder_that_is_none_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cluster = LocalCluster(tmp_path / "file" / "state", NODES, SystemClock())
    with pytest.raises(Unavailable, match="state folder"):
        await cluster.start()
    await cluster.close()


async def test_before_it_is_started_it_answers_nothing(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, NODES, SystemClock())
    with pytest.raises(Unavailable):
        await cluster.observe()
    with pytest.raises(Unavailable):
        await cluster.ensure_gone(new_reservation_id())


@pytest.mark.slow
async def test_an_address_that_is_not_ours_is_refused_and_leaves_no_process(world: LocalWorld) -> None:
    await world.cluster.close()
    world.cluster = LocalCluster(world.state_dir, NODES, SystemClock(), "192.0.2.1", mode=world.mode)
    await world.cluster.start()
    with pytest.raises(ClusterError, match=r"192\.0\.2\.1"):
        await world.cluster.ensure_server(world.spec())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, Unavailable), (errno.EIO, ClusterError)])
async def test_a_launch_on_a_full_disk_is_no_failure_of_the_reservation(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def refuse(_folder: ServerFolder, _record: ServerRecord) -> None:
        raise OSError(number, "refused")

    spec = world.spec()
    with monkeypatch.context() as full:
        full.setattr(ServerFolder, "write_record", refuse)
        with pytest.raises(expected, match="refused"):
            await world.cluster.ensure_server(spec)
    await world.ready(spec)
