"""A processor needs no more rights than it is granted: the whole life of a dev server, by its own service account."""

from collections.abc import Sequence

import pytest

from gpudev.adapters.kubernetes.client.rbac import CLUSTER_RULES, NAMESPACE_RULES, PolicyRule
from gpudev.domain.errors import ClusterError
from gpudev.ports.cluster import ServerPhase
from kubernetes.cluster_world import KubernetesWorld
from support.kube import Cluster, ControlPlane
from support.kube_api import KubeApi
from support.kube_nodes import FakeNodes

pytestmark = pytest.mark.slow
_RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def plane(kube: Cluster) -> ControlPlane:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    return kube


async def _grant(
    api: KubeApi, plane: ControlPlane, namespace: str, rights: Sequence[PolicyRule], everywhere: Sequence[PolicyRule]
) -> str:
    """The kubeconfig of an account with these rights."""
    token = await api.service_account_token("processor", namespace)
    subject = {"kind": "ServiceAccount", "name": "processor", "namespace": namespace}
    for kind, some, place in (("Role", rights, namespace), ("ClusterRole", everywhere, None)):
        role = {"metadata": {"name": f"{namespace}-processor"}, "rules": [right.to_manifest() for right in some]}
        reference = {"apiGroup": _RBAC, "kind": kind, "name": f"{namespace}-processor"}
        binding = {"metadata": role["metadata"], "roleRef": reference, "subjects": [subject]}
        await api.create(f"{kind.lower()}s", role, place)
        await api.create(f"{kind.lower()}bindings", binding, place)
    return str(plane.kubeconfig_with(token=token))


async def _revoke(api: KubeApi, namespace: str) -> None:
    for kind in ("clusterrolebindings", "clusterroles"):
        await api.delete(kind, f"{namespace}-processor")


async def test_the_granted_rights_suffice_for_the_whole_life_of_a_gang(
    plane: ControlPlane, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    own = await _grant(kube_api, plane, namespace, NAMESPACE_RULES, CLUSTER_RULES)
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
        await _revoke(kube_api, namespace)


async def test_the_granted_rights_suffice_for_shared_storage(
    plane: ControlPlane, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    own = await _grant(kube_api, plane, namespace, NAMESPACE_RULES, CLUSTER_RULES)
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
        await _revoke(kube_api, namespace)


async def test_without_the_right_to_protect_dev_servers_nothing_starts(
    plane: ControlPlane, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    rights = [right for right in NAMESPACE_RULES if right.group != "networking.k8s.io"]
    own = await _grant(kube_api, plane, namespace, rights, CLUSTER_RULES)
    world = KubernetesWorld(plane, kube_api, fake_nodes, namespace, kubeconfig=own)
    try:
        with pytest.raises(ClusterError, match="NetworkPolicy gpu-dev-servers is missing"):
            await world.open_cluster()
    finally:
        await _revoke(kube_api, namespace)
