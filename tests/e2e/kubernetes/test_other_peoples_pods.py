"""What somebody in a pod that really runs can do to others: by what their pod reports, and over the network."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpudev.adapters.kubernetes.client.resource_kinds import SERVICE
from gpudev.adapters.kubernetes.objects.network_policies import SSH_PORT
from gpudev.ports.cluster import ServerPhase
from support.kubernetes.real_node import RealNode
from support.kubernetes.real_node_world import RealWorld

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NOT_ENFORCED = (
    "NOT TESTED: the network plugin of the test node (bridge) ignores NetworkPolicies, as plain flannel does. "
    "test_network_policies.py and test_chart_objects.py check what the policies allow, not that a network obeys them"
)


@pytest.fixture
async def world(furnished_node: RealNode, real_namespace: str, tmp_path: Path) -> AsyncIterator[RealWorld]:
    async with RealWorld(furnished_node, real_namespace, tmp_path) as world:
        yield world


async def test_what_a_pod_says_when_it_ends_fails_no_observation(world: RealWorld) -> None:
    eve, other = world.spec(), world.spec()
    connection = (await world.ready(eve)).connection
    await world.ready(other)
    assert connection is not None
    deep = "head -c 4000 /dev/zero | tr '\\0' '[' | sudo tee /dev/termination-log | wc -c"
    assert (await world.ssh(connection, deep)).strip() == "4000"
    await world.kill(eve.reservation_id)
    dead = await world.until(eve.reservation_id, ServerPhase.DEAD)
    assert dead.command_exit is None
    assert (await world.cluster.observe()).servers[other.reservation_id].phase is ServerPhase.READY
    for spec in (eve, other):
        await world.gone(spec.reservation_id)


async def test_a_pod_reaches_no_pod_of_another_user(world: RealWorld) -> None:
    own, other = world.spec(), world.spec()
    mine, theirs = (await world.ready(own)).connection, (await world.ready(other)).connection
    assert mine is not None
    assert theirs is not None

    async def reaches(address: str, port: int) -> bool:
        attempt = f"timeout 3 bash -c 'exec 3<>/dev/tcp/{address}/{port}' 2>/dev/null && echo yes || echo no"
        return (await world.ssh(mine, attempt)).strip() == "yes"

    assert await reaches("127.0.0.1", SSH_PORT), "the attempt itself works"
    addresses = (await world.ssh(theirs, "hostname -i")).split()
    reached = [address for address in addresses if await reaches(address, SSH_PORT)]
    service = (await world.cluster._api.find_object(SERVICE, other.pod_name) or {})["spec"]["clusterIP"]
    reached += [service] if await reaches(service, SSH_PORT) else []
    for spec in (own, other):
        await world.gone(spec.reservation_id)
    if world.node.enforces_policies:
        assert reached == []
    else:
        assert reached, "it enforces them after all: say so in RealNode"
        pytest.skip(NOT_ENFORCED)
