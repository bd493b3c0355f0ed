"""What only a whole node can give: network devices and huge pages go to the dev server that has all of its GPUs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpudev.adapters.kubernetes.cache.object_records import to_node_record
from gpudev.adapters.kubernetes.objects.compute_resources import CpuMemory, grant_whole_node_resources
from gpudev.adapters.kubernetes.objects.pod_manifest import MemberPlacement, StorageClaims, build_pod
from gpudev.settings import KubernetesSettings, load_settings
from support.kubernetes.api import KubeApi
from support.kubernetes.cluster_world import KubernetesWorld
from support.kubernetes.control_plane import Cluster
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.objects import node
from support.kubernetes.server_specs import server_spec

EFA, PAGES = "vpc.amazonaws.com/efa", "hugepages-2Mi"
NAMES = (EFA, PAGES)


def offered(amounts: dict[str, str], names: tuple[str, ...] = NAMES) -> tuple[tuple[str, str], ...]:
    made = node(gpus=8)
    made["status"]["allocatable"] |= amounts
    return to_node_record(made, "GpuType", "nvidia.com/gpu", names).whole_node_resources


def test_a_node_is_asked_only_for_what_it_has_of_what_is_named() -> None:
    assert offered({EFA: "1", PAGES: "10Gi"}) == ((EFA, "1"), (PAGES, "10Gi"))
    assert offered({EFA: "1", PAGES: "0"}) == ((EFA, "1"),)
    assert offered({EFA: "0", PAGES: "what?"}) == ()
    assert offered({}) == ()
    assert offered({EFA: "1", PAGES: "10Gi"}, ()) == ()


@pytest.mark.parametrize(("units", "of", "expected"), [(8, 8, {EFA: "1"}), (7, 8, {}), (1, 8, {}), (8, 0, {})])
def test_only_who_has_every_gpu_of_the_node_gets_the_rest_of_it(units: int, of: int, expected: dict[str, str]) -> None:
    assert dict(grant_whole_node_resources(((EFA, "1"),), units, of)) == expected


def test_the_pod_asks_for_it_beside_its_gpus_and_is_still_guaranteed() -> None:
    spec = server_spec(units=8)
    place = MemberPlacement(spec.shares[0], CpuMemory(4000, 8192), ((EFA, "1"), (PAGES, "10Gi")))
    [container] = build_pod(spec, place, KubernetesSettings(), StorageClaims(), "ssh-ed25519 AAAA")["spec"][
        "containers"
    ]
    wanted = {"cpu": "4000m", "memory": "8192Mi", "nvidia.com/gpu": "8", EFA: "1", PAGES: "10Gi"}
    assert container["resources"] == {"requests": wanted, "limits": wanted}


def test_nothing_is_named_unless_the_operator_does() -> None:
    assert load_settings({}).kubernetes.whole_node_resources == ()
    named = load_settings({"GPU_DEV_WHOLE_NODE_RESOURCES": f"{EFA}, {PAGES}"}).kubernetes
    assert named.whole_node_resources == NAMES


@pytest.mark.parametrize("wrong", ["cpu", "memory", "nvidia.com/gpu", f"{EFA},", "not a name"])
def test_what_everybody_gets_a_share_of_and_what_is_no_name_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="GPU_DEV_WHOLE_NODE_RESOURCES"):
        load_settings({"GPU_DEV_WHOLE_NODE_RESOURCES": wrong})


@pytest.fixture
async def world(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> AsyncIterator[KubernetesWorld]:
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace, whole_node_resources=NAMES) as world:
        yield world


@pytest.mark.slow
async def test_members_of_a_gang_have_the_fast_network_and_who_shares_a_node_is_placed_without(
    world: KubernetesWorld,
) -> None:
    size: dict[str, Any] = {EFA: "1", PAGES: "10Gi"}
    async with world.nobody_watching():
        for name in world.names[:2]:  # the third is of a group without
            status = {"status": {"capacity": size, "allocatable": size}}
            await world.api.patch("nodes", name, status, subresource="status")
    gang, shared = world.spec(nodes=2), world.spec()
    await world.ready(gang)
    await world.ready(shared)
    asked = {
        one["metadata"]["name"]: {
            name: amount
            for name, amount in one["spec"]["containers"][0]["resources"]["limits"].items()
            if name in NAMES
        }
        for one in await world.api.list("pods", world.namespace)
    }
    assert asked == {gang.pod_name: size, f"{gang.pod_name}-1": {}, shared.pod_name: {}}
