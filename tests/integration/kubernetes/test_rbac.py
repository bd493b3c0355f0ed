"""A processor needs no more rights than it is granted: the whole life of a dev server, by its own service account."""

import pytest

from gpudev.adapters.kubernetes.client.rbac import CLUSTER_RULES, NAMESPACE_RULES
from gpudev.domain.errors import ClusterError
from gpudev.ports.cluster import ServerPhase
from support.kubernetes.api import KubeApi
from support.kubernetes.cluster_world import KubernetesWorld
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.rbac_grants import grant_rights, revoke_rights

pytestmark = pytest.mark.slow


@pytest.fixture
def plane(kube: Cluster) -> ControlPlane:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    return kube


async def test_the_granted_rights_suffice_for_the_whole_life_of_a_gang(
    plane: ControlPlane, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    own = await grant_rights(kube_api, plane, namespace, NAMESPACE_RULES, CLUSTER_RULES)
    try:
        async with KubernetesWorld(plane, kube_api, fake_nodes, namespace, kubeconfig=own) as world:
            spec = world.spec(nodes=2)
            await world.ready(spec)
            await world.cluster.send_message(spec.reservation_id, "hello")
            plane.set_pod_log("its last words\n")
            await world.kill(spec.reservation_id)
            seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
            assert "its last words" in (seen.reason or ""), "the right to read logs"
            await world.ready(spec)
            secret = await kube_api.wait(
                "secrets", spec.pod_name, namespace, lambda one: bool(one["data"].get("hosts")), seconds=10
            )
            assert secret["data"]["hosts"], "the right to tell members their addresses"
            await world.gone(spec.reservation_id)
            assert await world.objects_of(spec.reservation_id) == []
    finally:
        await revoke_rights(kube_api, namespace)


async def test_the_granted_rights_suffice_for_shared_storage(
    plane: ControlPlane, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    own = await grant_rights(kube_api, plane, namespace, NAMESPACE_RULES, CLUSTER_RULES)
    more = {"kubeconfig": own, "shared_storage_class": "nfs"}
    try:
        async with KubernetesWorld(plane, kube_api, fake_nodes, namespace, **more) as world:
            for _ in range(2):
                await world.cluster.ensure_server(world.spec())
            async with world.nobody_watching():  # the next one finds the claim there
                pass
            await world.cluster.ensure_server(world.spec())
            assert len(await kube_api.list("persistentvolumeclaims", namespace)) == 1
    finally:
        await revoke_rights(kube_api, namespace)


async def test_without_the_right_to_protect_dev_servers_nothing_starts(
    plane: ControlPlane, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    rights = [right for right in NAMESPACE_RULES if right.group != "networking.k8s.io"]
    own = await grant_rights(kube_api, plane, namespace, rights, CLUSTER_RULES)
    world = KubernetesWorld(plane, kube_api, fake_nodes, namespace, kubeconfig=own)
    try:
        with pytest.raises(ClusterError, match="NetworkPolicy gpu-dev-servers is missing"):
            await world.open_cluster()
    finally:
        await revoke_rights(kube_api, namespace)
