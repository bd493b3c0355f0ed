"""How dev servers on Kubernetes die, and what is told of it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.adapters.kubernetes.observation.pod_failures import placement_rejections
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cluster import ServerPhase
from support.kubernetes.api import KubeApi
from support.kubernetes.cluster_world import KubernetesWorld
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.server_specs import server_spec
from support.polling import eventually_async, until_it_succeeds

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> AsyncIterator[KubernetesWorld]:
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace) as world:
        yield world


@pytest.mark.parametrize(
    ("play", "words"),
    [
        ("oom", "ran out of memory"),
        ("evicted", "evicted"),
        ("crash:3", "exit code 3"),
        ("init-crash", "its init container failed"),
    ],
)
async def test_a_death_is_told_in_words(world: KubernetesWorld, play: str, words: str) -> None:
    if play == "init-crash":
        spec = world.spec(image=f"play.test/{play}")
        await world.cluster.ensure_server(spec)
    else:
        spec = world.spec()
        await world.ready(spec)
        await world.play(spec.reservation_id, play)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert words in (seen.reason or "")
    assert not seen.is_restartable


async def test_a_death_is_told_with_the_last_log_lines(kube: Cluster, world: KubernetesWorld) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("what pods have logged can be chosen only on a control plane of our own")
    kube.set_pod_log("loading the model\nTraceback: it was too big\n")
    spec = world.spec()
    await world.ready(spec)
    await world.kill(spec.reservation_id)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert (seen.reason or "").endswith("Its last log lines:\nloading the model\nTraceback: it was too big")


async def test_an_image_that_is_not_there_is_told_and_not_waited_for(world: KubernetesWorld) -> None:
    spec = world.spec(image="play.test/pull-error")
    await world.cluster.ensure_server(spec)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert "the image play.test/pull-error was not found" in (seen.reason or "")


async def test_every_step_of_the_start_is_told(world: KubernetesWorld) -> None:
    spec = world.spec(image="play.test/slow:800ms")
    steps: list[str | None] = []
    changes = world.cluster.changes()
    await world.cluster.ensure_server(spec)
    async with asyncio.timeout(20):
        while True:
            seen = await world.seen(spec.reservation_id)
            assert seen is not None
            if seen.phase is ServerPhase.READY:
                break
            if not steps or steps[-1] != seen.step:
                steps.append(seen.step)
            await anext(changes)
    told = " | ".join(step or "" for step in steps)
    assert "pulling image play.test/slow:800ms" in told
    assert "starting the ssh server" in told


async def test_a_gang_is_dead_when_one_of_its_members_is(world: KubernetesWorld) -> None:
    spec = world.spec(nodes=2)
    await world.ready(spec)
    await world.play(spec.reservation_id, "oom", rank=1)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert (seen.reason or "").startswith("member 1: it ran out of memory")


async def test_a_member_that_is_started_again_joins_those_that_live(world: KubernetesWorld) -> None:
    spec = world.spec(nodes=2)
    await world.ready(spec)
    first = await world.api.get("pods", spec.pod_name, world.namespace)
    await world.play(spec.reservation_id, "oom", rank=1)
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    await world.ready(spec)
    assert (await world.api.get("pods", spec.pod_name, world.namespace))["metadata"]["uid"] == first["metadata"]["uid"]


async def test_a_pod_that_somebody_deleted_is_a_death(world: KubernetesWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    await world.api.delete("pods", spec.pod_name, world.namespace)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert "deleted from outside gpu-dev" in (seen.reason or "")
    assert not seen.is_restartable


async def test_a_pod_that_was_deleted_while_nobody_watched_may_be_started_again(world: KubernetesWorld) -> None:
    spec = world.spec()
    before = await world.ready(spec)
    async with world.nobody_watching():
        await world.api.delete("pods", spec.pod_name, world.namespace)
        await world.api.wait_gone("pods", spec.pod_name, world.namespace)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert seen.is_restartable
    after = await world.ready(spec)
    assert after.connection == before.connection


async def test_a_lost_node_is_silence_at_first_and_a_death_after_a_while(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace, node_lost_after=timedelta(seconds=3)) as world:
        spec = world.spec()
        await world.ready(spec)
        await fake_nodes.lose(world.names[0])
        silent = await world.until(spec.reservation_id, ServerPhase.STARTING)
        assert "does not answer" in (silent.step or "")
        dead = await world.until(spec.reservation_id, ServerPhase.DEAD)
        assert "was lost" in (dead.reason or "")
        assert not await world.cluster.ensure_gone(spec.reservation_id), "nobody knows whether it still runs"
        await fake_nodes.remove(world.names[0])
        pod = await kube_api.get("pods", spec.pod_name, namespace)
        await kube_api.delete("pods", pod["metadata"]["name"], namespace, grace=0)
        await world.gone(spec.reservation_id)


async def test_a_place_that_the_scheduler_refuses_is_noticed_counted_and_left(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    async with KubernetesWorld(
        kube, kube_api, fake_nodes, namespace, unschedulable_after=timedelta(seconds=1)
    ) as world:
        counted = _refusals("scheduler")
        spec = server_spec(world.names[1], world.names[2], units=8)
        await fake_nodes.cordon(world.names[2])
        await world.cluster.ensure_server(spec)
        seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
        assert f"member 1: its node {world.names[2]} rejects it" in (seen.reason or "")
        assert seen.is_restartable, "it never ran: another attempt may do"
        await world.seen(spec.reservation_id)
        assert _refusals("scheduler") == counted + 1, "once per pod, however often one looks"
        with pytest.raises(ClusterError, match="the cluster rejected the placement"):
            await world.cluster.ensure_server(spec)
        for rank in (0, 1):
            name = spec.pod_name if rank == 0 else f"{spec.pod_name}-{rank}"
            await kube_api.wait_gone("pods", name, namespace)
        await fake_nodes.cordon(world.names[2], False)
        await world.ready(spec)


async def test_a_place_that_the_kubelet_refuses_is_noticed_counted_and_left(world: KubernetesWorld) -> None:
    counted = _refusals("kubelet")
    spec = world.spec(image="play.test/never-ready")
    await world.cluster.ensure_server(spec)
    await world.until(spec.reservation_id, ServerPhase.STARTING)
    await world.api.wait("pods", spec.pod_name, world.namespace, lambda pod: "nodeName" in pod["spec"])
    status = {
        "phase": "Failed",
        "reason": "OutOfnvidia.com/gpu",
        "message": "Node didn't have enough resource",
        "containerStatuses": None,
    }
    await world.api.patch("pods", spec.pod_name, {"status": status}, world.namespace, subresource="status")
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert "rejected it: OutOfnvidia.com/gpu" in (seen.reason or "")
    assert seen.is_restartable
    assert _refusals("kubelet") == counted + 1
    with pytest.raises(ClusterError, match="the cluster rejected the placement"):
        await world.cluster.ensure_server(spec)
    # A fake node takes pods out by their name, and could take out the next.
    await world.api.wait_gone("pods", spec.pod_name, world.namespace)
    await world.ready(replace(spec, image=None))


async def test_an_api_server_that_is_away_makes_no_statement(own_control_plane: ControlPlane) -> None:
    api = await KubeApi.connect(own_control_plane.kubeconfig)
    suffix = f"-{uuid.uuid4().hex[:6]}"  # those of a first try stay
    nodes = FakeNodes(api, own_control_plane.node_mark, kwok_port=own_control_plane.kwok_port, suffix=suffix)
    short = timedelta(seconds=3)
    async with KubernetesWorld(own_control_plane, api, nodes, "gpu-dev", stale_after=short) as world:
        spec, second = world.spec(), world.spec()
        before = await world.ready(spec)
        await asyncio.to_thread(own_control_plane.kill_apiserver)
        with pytest.raises(Unavailable):
            await world.cluster.ensure_gone(spec.reservation_id)
        with pytest.raises(Unavailable):
            await world.cluster.ensure_server(second)

        async def is_unavailable() -> bool:
            try:
                await world.cluster.observe()
            except Unavailable:
                return True
            return False

        await eventually_async(is_unavailable, within=20, every=0.1)
        await asyncio.to_thread(own_control_plane.start_apiserver)
        seen = await until_it_succeeds(world.cluster.observe, Unavailable, within=20)
        assert seen.servers[spec.reservation_id] == before
        await world.ready(second)
        for one in (spec, second):
            await world.gone(one.reservation_id)
            assert await world.objects_of(one.reservation_id) == []
    await api.close()


def _refusals(who: str) -> float:
    return placement_rejections.labels(who)._value.get()
