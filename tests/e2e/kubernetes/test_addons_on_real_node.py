"""The inside of pods that really run: who is let in without a restart, and Jupyter."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpudev.adapters.key_pairs import generate_key_pair
from gpudev.adapters.kubernetes.client.resource_kinds import SECRET
from gpudev.adapters.kubernetes.objects.secret_files import decode_secret_value
from gpudev.adapters.ssh_tunnels import SshTunnels
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.addons import JupyterSpec, JupyterState, JupyterStatus, jupyter_path
from gpudev.ports.cluster import ServerPhase
from support.kubernetes.real_node import RealNode
from support.kubernetes.real_node_world import RealWorld
from support.polling import eventually_async

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
async def world(furnished_node: RealNode, real_namespace: str, tmp_path: Path) -> AsyncIterator[RealWorld]:
    async with RealWorld(furnished_node, real_namespace, tmp_path) as world:
        yield world


async def test_people_are_let_in_and_sent_away_while_a_pod_runs_and_jupyter_is_told_of(
    world: RealWorld, tmp_path: Path
) -> None:
    spec = world.spec()
    rid, owners = spec.reservation_id, spec.ssh_public_keys
    with pytest.raises(Unavailable):
        await world.cluster.apply_addons(rid, owners, None)
    connection = (await world.ready(spec)).connection
    assert connection is not None
    await world.ssh(connection, "true")
    private, theirs = generate_key_pair()
    owner, world.key = world.key, tmp_path / "colleague"
    world.key.write_text(private)
    world.key.chmod(0o600)
    with pytest.raises(AssertionError, match="Permission denied"):
        await world.ssh(connection, "true")
    await world.cluster.apply_addons(rid, (*owners, theirs), None)
    assert await world.ssh(connection, "id -un") == "dev\n"
    secret = await world.cluster._api.find_object(SECRET, spec.pod_name)
    assert secret is not None
    assert theirs in decode_secret_value(secret["data"]["authorized_keys"]), "for the next start"
    session = await asyncio.create_subprocess_exec(
        *world.ssh_command(connection, "echo in; exec cat"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert session.stdout is not None
    assert await session.stdout.readline() == b"in\n"
    await world.cluster.apply_addons(rid, owners, None)
    async with asyncio.timeout(20):
        await session.wait()
    with pytest.raises(AssertionError, match="Permission denied"):
        await world.ssh(connection, "true")
    world.key = owner
    await world.ssh(connection, "true")
    await check_jupyter(world, spec.reservation_id, owners, connection)
    await world.gone(rid)


async def check_jupyter(world: RealWorld, rid: ReservationId, owners: tuple[str, ...], connection: SshEndpoint) -> None:
    """The image has none: that is told, and the way there leads nowhere."""
    private, public = generate_key_pair()
    wish = JupyterSpec("a-token", public, jupyter_path(rid))

    async def failed() -> JupyterStatus | None:
        status = await world.cluster.apply_addons(rid, owners, wish)
        assert status is not None
        return status if status.state is JupyterState.FAILED else None

    seen = await eventually_async(failed, every=0.2)
    assert seen.reason is not None
    assert "gpu-dev jupyter enable --install" in seen.reason

    async def address(to: SshEndpoint) -> str:
        return to.host

    ways = SshTunnels(address, 20)
    with pytest.raises(Unavailable, match="Jupyter does not answer"):
        async with ways.open_tunnel(connection, private):
            pass
    await ways.close()
    assert await world.cluster.apply_addons(rid, owners, None) is None


async def test_a_pod_that_is_made_anew_lets_the_same_people_in(world: RealWorld, tmp_path: Path) -> None:
    private, theirs = generate_key_pair()
    spec = world.spec()
    await world.ready(spec)
    keys = (*spec.ssh_public_keys, theirs)
    await world.cluster.apply_addons(spec.reservation_id, keys, None)
    await world.kill(spec.reservation_id)
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    connection = (await world.ready(replace(spec, ssh_public_keys=keys))).connection
    assert connection is not None
    world.key = tmp_path / "colleague"
    world.key.write_text(private)
    world.key.chmod(0o600)
    await world.ssh(connection, "true")
    await world.gone(spec.reservation_id)
