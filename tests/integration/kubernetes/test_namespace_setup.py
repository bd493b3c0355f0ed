"""What dev servers stand on may be taken away while the control plane runs: their namespace, its policy, our rights."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpudev.adapters.kubernetes.client.rbac import CLUSTER_RULES, NAMESPACE_RULES
from gpudev.adapters.kubernetes.provisioning import namespace_setup
from gpudev.domain.errors import Unavailable
from gpudev.ports.cluster import ServerSpec
from support.kubernetes.api import KubeApi
from support.kubernetes.cluster_world import KubernetesWorld
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.rbac_grants import grant_rights, revoke_rights
from support.polling import eventually_async, until_it_succeeds

pytestmark = pytest.mark.slow
POLICY = "gpu-dev-servers"


@pytest.fixture
async def world(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KubernetesWorld]:
    monkeypatch.setattr(namespace_setup, "_CHECK_INTERVAL_S", 0.2)
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace) as world:
        yield world


async def start_at_last(world: KubernetesWorld, spec: ServerSpec) -> None:
    await until_it_succeeds(lambda: world.cluster.ensure_server(spec), Unavailable)


async def test_a_namespace_that_was_deleted_is_made_anew_with_its_policy(
    world: KubernetesWorld, kube_api: KubeApi
) -> None:
    spec = world.spec()
    await world.ready(spec)
    await kube_api.delete("namespaces", world.namespace)
    await start_at_last(world, world.spec())
    there = await kube_api.get("namespaces", world.namespace)
    assert "deletionTimestamp" not in there["metadata"]
    assert await kube_api.find("networkpolicies", POLICY, world.namespace) is not None


async def test_a_policy_that_was_deleted_comes_back(world: KubernetesWorld, kube_api: KubeApi) -> None:
    await kube_api.delete("networkpolicies", POLICY, world.namespace)
    await kube_api.wait("networkpolicies", POLICY, world.namespace, lambda one: True)


async def test_rights_that_were_taken_away_fail_nobody_who_can_start_when_they_are_back(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    own = await grant_rights(kube_api, kube, namespace, NAMESPACE_RULES, CLUSTER_RULES)
    binding = await kube_api.get("rolebindings", f"{namespace}-processor", namespace)
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        binding["metadata"].pop(key, None)
    try:
        async with KubernetesWorld(kube, kube_api, fake_nodes, namespace, kubeconfig=own) as world:
            await kube_api.delete("rolebindings", f"{namespace}-processor", namespace)
            spec = world.spec()
            with pytest.raises(Unavailable, match="cannot create resource"):
                async with asyncio.timeout(30):
                    while True:  # the authorizer hears of it a moment later
                        await world.cluster.ensure_server(spec)
            await kube_api.create("rolebindings", binding, namespace)
            await start_at_last(world, spec)
    finally:
        await revoke_rights(kube_api, namespace)


async def test_nobody_is_started_while_the_policy_is_missing_and_may_not_be_made(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    monkeypatch.setattr(namespace_setup, "_CHECK_INTERVAL_S", 0.2)
    own = await grant_rights(kube_api, kube, namespace, NAMESPACE_RULES, CLUSTER_RULES)
    rules = [right.to_manifest() for right in NAMESPACE_RULES if right.group != "networking.k8s.io"]
    try:
        async with KubernetesWorld(kube, kube_api, fake_nodes, namespace, kubeconfig=own) as world:
            await kube_api.patch("roles", f"{namespace}-processor", {"rules": rules}, namespace)
            await kube_api.delete("networkpolicies", POLICY, namespace)

            async def start_without_policy() -> None:
                await world.cluster.ensure_server(world.spec())
                await kube_api.delete("networkpolicies", POLICY, namespace)

            with pytest.raises(Unavailable, match=f"{POLICY} is missing"):
                await eventually_async(start_without_policy, every=0.1)
    finally:
        await revoke_rights(kube_api, namespace)
