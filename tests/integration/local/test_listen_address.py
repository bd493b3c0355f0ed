"""Where dev servers listen: on the address people are told, also those that a control plane before this one started."""

from collections.abc import AsyncIterator

import pytest

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.servers.state_folder import server_record_from_json, server_record_to_json
from gpudev.ports.clock import SystemClock
from support.local.local_world import MODES, LocalWorld
from support.ports import NEEDS_OTHER_ADDRESS, OTHER_ADDRESS

pytestmark = [pytest.mark.slow, NEEDS_OTHER_ADDRESS]


class ListeningWorld(LocalWorld):
    """Its cluster was told where to listen."""

    def make_cluster(self) -> LocalCluster:
        return LocalCluster(self.state_dir, self.nodes, self.clock, OTHER_ADDRESS, mode=self.mode)


@pytest.fixture
async def listening() -> AsyncIterator[ListeningWorld]:
    async with ListeningWorld(SystemClock(), MODES[0]) as opened:
        yield opened


async def test_dev_servers_are_announced_where_they_listen_even_after_the_address_changed(
    listening: ListeningWorld,
) -> None:
    spec = listening.spec()
    seen = await listening.ready(spec)
    assert seen.connection is not None
    assert seen.connection.host == OTHER_ADDRESS
    await listening.cluster.close()
    await LocalWorld.open(listening)  # as without `--listen`
    found = await listening.seen(spec.reservation_id)
    assert found is not None
    assert found.connection == seen.connection


async def test_the_members_of_a_gang_reach_each_other_by_name(listening: ListeningWorld) -> None:
    if MODES[0] not in (IsolationMode.ROOT, IsolationMode.USER):
        pytest.skip("without namespaces there is no file of names of its own")
    spec = listening.spec(nodes=2)
    seen = await listening.ready(spec)
    assert seen.connection is not None
    hosts = (await listening.out(seen, "cat /etc/hosts")).splitlines()
    # In a network of their own, this machine's addresses are not theirs.
    address = OTHER_ADDRESS if listening.cluster._networks.own is None else "127.0.0.1"
    assert f"{address} {spec.pod_name} {spec.pod_name}-1" in hosts
    alone = listening.spec()
    ready = await listening.ready(alone)
    assert f"127.0.0.1 {alone.pod_name}" in (await listening.out(ready, "cat /etc/hosts")).splitlines()


async def test_a_record_from_before_says_nothing_of_an_address(listening: ListeningWorld) -> None:
    spec = listening.spec()
    await listening.ready(spec)
    record = listening.cluster._servers[spec.reservation_id].record
    assert record is not None
    assert server_record_from_json(server_record_to_json(record)) == record
    assert server_record_from_json(server_record_to_json(record).replace('"host"', '"unknown"')).host is None
