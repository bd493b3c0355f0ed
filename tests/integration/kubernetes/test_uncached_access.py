"""One look by whoever does not stay: the same facts as the mirror's, with no more rights than a look needs."""

import pytest

from gpudev.adapters.kubernetes import uncached_access as reading_module
from gpudev.adapters.kubernetes.client.rbac import OBSERVE_CLUSTER_RULES
from gpudev.adapters.kubernetes.uncached_access import UncachedCluster
from gpudev.domain.cluster import Catalogue, load_catalogue
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase
from support.kubernetes.api import KubeApi
from support.kubernetes.cluster_world import KubernetesWorld
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.objects import foreign_pod
from support.kubernetes.rbac_grants import grant_rights, revoke_rights

pytestmark = pytest.mark.slow


async def catalogue() -> Catalogue:
    return load_catalogue()


async def test_a_single_look_sees_what_the_mirror_sees(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "_PAGE", 2)  # many pages
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace) as world:
        spec = world.spec()
        await world.ready(spec)
        await kube_api.create("pods", foreign_pod("stranger", world.names[1], 3), namespace)
        await fake_nodes.cordon(world.names[2])
        await world.until(spec.reservation_id, ServerPhase.READY)
        reading = UncachedCluster(world.settings, catalogue, SystemClock())
        try:
            seen = await reading.observe()
        finally:
            await reading.close()
        by_name = {node.name: node for node in seen.nodes}
        assert by_name[world.names[1]].foreign_units == 3
        assert not by_name[world.names[2]].schedulable
        assert [(share.node, share.units) for share in seen.servers[spec.reservation_id].node_shares] == [
            (world.names[0], 1)
        ]
        mirrored = await world.cluster.observe()
        assert seen.nodes == mirrored.nodes
        assert seen.servers.keys() == mirrored.servers.keys()


async def test_a_look_needs_to_list_nodes_and_pods_and_nothing_else(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    name = await fake_nodes.add("a")
    own = await grant_rights(kube_api, kube, namespace, [], OBSERVE_CLUSTER_RULES)
    try:
        settings = KubernetesWorld(kube, kube_api, fake_nodes, namespace, kubeconfig=own).settings
        reading = UncachedCluster(settings, catalogue, SystemClock())
        assert name in {node.name for node in (await reading.observe()).nodes}
        await reading.close()
    finally:
        await revoke_rights(kube_api, namespace)
    refused = UncachedCluster(settings, catalogue, SystemClock())
    try:
        with pytest.raises(ClusterError, match="cannot list"):
            await refused.observe()
    finally:
        await refused.close()


async def test_a_look_at_a_cluster_that_is_away_is_unavailable(own_control_plane: ControlPlane) -> None:
    settings = KubernetesWorld(own_control_plane, None, None, "default").settings  # type: ignore[arg-type]
    own_control_plane.kill_apiserver()
    reading = UncachedCluster(settings, catalogue, SystemClock())
    try:
        with pytest.raises(Unavailable):
            await reading.observe()
    finally:
        await reading.close()
