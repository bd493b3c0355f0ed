"""What a real control plane and KWOK's nodes write when dev servers die is told in the right words, within seconds."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from gpudev.adapters.kubernetes.cache.cluster_cache import ClusterCache
from gpudev.adapters.kubernetes.client.kubernetes_api import connect_api
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.observation.server_state import ServerObservation, compute_server_state
from gpudev.domain.ids import ReservationId, new_reservation_id, pod_name
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.settings import KubernetesSettings
from support.kubernetes.api import KubeApi, is_ready
from support.kubernetes.control_plane import Cluster
from support.kubernetes.fake_nodes import FakeNodes
from support.polling import eventually_async

pytestmark = pytest.mark.slow


class Watched:
    """One cluster, its mirror, and a dev server of our own making on it."""

    def __init__(self, mirror: ClusterCache, settings: KubernetesSettings, api: KubeApi) -> None:
        self.mirror = mirror
        self.settings = settings
        self.api = api

    async def start(self, node: str | None, play: str = "", *, ready: bool = False, **spec: Any) -> ReservationId:
        rid = new_reservation_id()
        marks = {
            labels.MANAGED_BY: labels.MANAGER,
            labels.RESERVATION_ID: str(rid),
            labels.RANK: "0",
            labels.MEMBERS: "1",
        }
        notes = {labels.HOST_KEY: "key", **({"gpu-dev.test/play": play} if play else {})}
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        manifest = {
            "metadata": {"name": pod_name(rid), "labels": marks, "annotations": notes},
            "spec": {
                "restartPolicy": "Never",
                "initContainers": [{"name": "setup", "image": "example.test/setup:1"}],
                "containers": [{"name": "dev", "image": "example.test/dev:1", "resources": limits}],
                **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
                **spec,
            },
        }
        await self.api.create("pods", manifest, self.settings.namespace)
        service = {"type": "NodePort", "selector": marks, "ports": [{"port": 22}]}
        await self.api.create(
            "services", {"metadata": {"name": pod_name(rid), "labels": marks}, "spec": service}, self.settings.namespace
        )
        if ready:
            await self.api.wait("pods", pod_name(rid), self.settings.namespace, is_ready)
        return rid

    def facts(self, rid: ReservationId) -> ServerObservation:
        return compute_server_state(
            self.mirror.get_server_parts(rid), self.mirror.nodes, SystemClock().now(), self.settings
        )

    async def until(self, rid: ReservationId, phase: ServerPhase) -> ServerState:
        def is_so() -> ServerState | None:
            state = self.facts(rid).state
            return state if state.phase is phase and not state.is_restartable else None

        return await eventually_async(is_so, lambda: self.facts(rid))


@pytest.fixture
async def watched(kube: Cluster, kube_api: KubeApi, namespace: str) -> AsyncIterator[Watched]:
    settings = KubernetesSettings(
        kubeconfig=str(kube.kubeconfig),
        namespace=namespace,
        unschedulable_after=timedelta(seconds=1),
        image_pull_patience=timedelta(seconds=2),
    )
    api = connect_api(settings)
    mirror = ClusterCache(api, settings, SystemClock())
    mirror.start()
    await mirror.wait_until_listed(timedelta(seconds=10))
    yield Watched(mirror, settings, kube_api)
    await mirror.close()
    await api.close()


@pytest.mark.parametrize(
    ("play", "words"),
    [
        ("oom", "out of memory"),
        ("crash:3", "exit code 3"),
        ("init-crash:4", "its init container failed: it ended with exit code 4"),
        ("evicted", "it was evicted from"),
        ("pull-error", "example.test/dev:1"),
    ],
)
async def test_a_death_is_told_in_words(watched: Watched, fake_nodes: FakeNodes, play: str, words: str) -> None:
    rid = await watched.start(await fake_nodes.add("n1"), play)
    assert words in str((await watched.until(rid, ServerPhase.DEAD)).reason)


async def test_every_step_of_a_slow_start_is_seen_in_order(watched: Watched, fake_nodes: FakeNodes) -> None:
    rid = await watched.start(await fake_nodes.add("n1"), "slow:800ms")
    steps: list[str | None] = []

    def is_ready() -> bool:
        seen = watched.facts(rid).state
        if seen.phase is ServerPhase.STARTING and (not steps or steps[-1] != seen.step):
            steps.append(seen.step)
        return seen.phase is ServerPhase.READY

    await eventually_async(is_ready, every=0.01)
    told = [str(step).split(" example")[0].split(",")[0] for step in steps]
    assert [step for step in told if step in ("pulling image", "starting the ssh server")][-2:] == [
        "pulling image",
        "starting the ssh server",
    ]
    assert watched.facts(rid).state.node_shares[0].units == 1


async def test_a_pod_that_no_node_takes_is_given_up_with_the_schedulers_words(watched: Watched) -> None:
    rid = await watched.start("no-such-node")
    assert watched.facts(rid).state.phase is not ServerPhase.READY
    assert "node" in str((await watched.until(rid, ServerPhase.DEAD)).reason)


async def test_a_pod_somebody_deletes_is_told_apart_from_one_that_is_drained(
    watched: Watched, fake_nodes: FakeNodes
) -> None:
    node = await fake_nodes.add("n1")
    deleted, drained = (await watched.start(node, ready=True), await watched.start(node, ready=True))
    await watched.until(drained, ServerPhase.READY)
    await watched.api.delete("pods", pod_name(deleted), watched.settings.namespace)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod_name(drained)}}
    await watched.api.create(f"pods/{pod_name(drained)}/eviction", eviction, watched.settings.namespace)
    assert "deleted from outside gpu-dev" in str((await watched.until(deleted, ServerPhase.DEAD)).reason)
    assert "is being drained" in str((await watched.until(drained, ServerPhase.DEAD)).reason)


async def test_a_lost_node_is_silence_first_and_a_lost_node_once_the_cluster_gives_up(
    watched: Watched, fake_nodes: FakeNodes
) -> None:
    node = await fake_nodes.add("n1")
    for other in ("n2", "n3"):  # were all nodes lost, the cluster would doubt itself and evict nobody
        await fake_nodes.add(other)
    brief = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
        for what in ("unreachable", "not-ready")
    ]
    rid = await watched.start(node, ready=True, tolerations=brief)
    await watched.until(rid, ServerPhase.READY)
    await fake_nodes.lose(node)
    assert "does not answer" in str((await watched.until(rid, ServerPhase.STARTING)).step)
    assert f"its node {node} was lost" in str((await watched.until(rid, ServerPhase.DEAD)).reason)


async def test_a_node_that_is_removed_takes_its_dev_servers_along(watched: Watched, fake_nodes: FakeNodes) -> None:
    node = await fake_nodes.add("n1")
    rid = await watched.start(node, ready=True)
    await watched.until(rid, ServerPhase.READY)
    await fake_nodes.remove(node)
    assert f"its node {node} is gone" in str((await watched.until(rid, ServerPhase.DEAD)).reason)
