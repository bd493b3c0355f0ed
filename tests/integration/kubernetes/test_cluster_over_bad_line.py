"""Over a line that breaks every moment nothing is lost, doubled or left behind."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gpudev.domain.errors import Unavailable
from gpudev.ports.cluster import ServerPhase, ServerSpec
from support.kubernetes.api import KubeApi
from support.kubernetes.bad_line import CuttingProxy
from support.kubernetes.cluster_world import KINDS, KubernetesWorld
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.polling import eventually_async

pytestmark = pytest.mark.slow

_CUT_EVERY_S = 0.7
_PATIENCE_S = 90.0


async def _insist(act: Callable[[], Awaitable[object]], claim: Callable[[object], bool] = lambda _: True) -> None:
    """As the processor does: what could not be asked, or is not so yet, is asked again."""

    async def is_so() -> bool:
        with contextlib.suppress(Unavailable):
            return claim(await act())
        return False

    await eventually_async(is_so, within=_PATIENCE_S, every=0.1)


async def _is(world: KubernetesWorld, spec: ServerSpec, phase: ServerPhase) -> None:
    async def phase_now() -> object:
        seen = await world.seen(spec.reservation_id)
        return None if seen is None else seen.phase

    await _insist(phase_now, lambda found: found is phase)


async def _is_gone(world: KubernetesWorld, spec: ServerSpec) -> None:
    await _insist(lambda: world.cluster.ensure_gone(spec.reservation_id), lambda gone: gone is True)


async def _lead_a_life(world: KubernetesWorld, spec: ServerSpec, *, dies: bool, ends: bool) -> None:
    await _insist(lambda: world.cluster.ensure_server(spec))
    await _is(world, spec, ServerPhase.READY)
    if dies:
        await world.kill(spec.reservation_id)
        await _is(world, spec, ServerPhase.DEAD)
        await _insist(lambda: world.cluster.ensure_server(spec))
        await _is(world, spec, ServerPhase.READY)
    if ends:
        await _is_gone(world, spec)


async def test_every_dev_server_is_there_once_or_gone_without_a_trace(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("the line is made bad only before a control plane of our own")
    async with CuttingProxy(kube.port, every=_CUT_EVERY_S) as line:
        bad = str(kube.kubeconfig_with(server=line.url))
        world = KubernetesWorld(kube, kube_api, fake_nodes, namespace)
        async with world:
            await world.cluster.close()
            world.settings = replace(world.settings, kubeconfig=bad)
            world.cluster = await world.open_cluster()
            singles = [world.spec() for _ in range(4)]
            gang = world.spec(nodes=2)
            lives = [
                _lead_a_life(world, spec, dies=number % 2 == 0, ends=number < 2)
                for number, spec in enumerate([*singles, gang])
            ]
            await asyncio.gather(*lives)
            alive = [*singles[2:], gang]
            servers: dict[object, object] = {}

            async def look() -> object:
                servers.clear()
                servers.update((await world.cluster.observe()).servers)
                return servers

            await _insist(look)
            assert set(servers) == {spec.reservation_id for spec in alive}
            assert line.cuts > 5, "the line was bad"
            await _check_objects(world, alive)
            for spec in alive:
                await _is_gone(world, spec)
            await _check_objects(world, [])


async def _check_objects(world: KubernetesWorld, alive: list[ServerSpec]) -> None:
    """By the API server's own listing, over a good line."""
    for kind in KINDS:
        owners = [
            one["metadata"]["labels"]["gpu-dev/reservation-id"]
            for one in await world.api.list(kind, world.namespace, selector="gpu-dev/reservation-id")
        ]
        expected = [str(spec.reservation_id) for spec in alive for _ in range(_how_many(kind, len(spec.shares)))]
        assert sorted(owners) == sorted(expected), kind


def _how_many(kind: str, members: int) -> int:
    is_gang = members > 1
    return {"pods": members, "services": 1 + is_gang, "secrets": 1, "networkpolicies": int(is_gang)}[kind]
