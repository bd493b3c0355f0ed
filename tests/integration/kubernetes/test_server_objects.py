"""What is made for a dev server on a real API server, what is left alone, and what is taken back."""

import base64
from collections.abc import AsyncIterator

import pytest

from gpudev.adapters.kubernetes.objects import labels
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import new_disk_id
from gpudev.ports.cluster import ServerPhase, ServerSpec
from support.kubernetes.api import KubeApi, Object
from support.kubernetes.cluster_world import KubernetesWorld
from support.kubernetes.control_plane import Cluster
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.server_specs import server_spec
from support.polling import eventually_async

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> AsyncIterator[KubernetesWorld]:
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace) as world:
        yield world


async def taken_back(world: KubernetesWorld, spec: ServerSpec) -> None:
    """What was made before the refusal goes again; a pod that a node has already begun with takes its moment."""

    async def is_gone() -> bool:
        return not await world.objects_of(spec.reservation_id)

    await eventually_async(is_gone, every=0.05)


def _file(secret: Object, name: str) -> str:
    return base64.b64decode(secret["data"][name]).decode()


async def test_the_scheduler_binds_every_pod_to_its_planned_node(world: KubernetesWorld) -> None:
    spec = world.spec(nodes=2)
    await world.ready(spec)
    pods = await world.api.list("pods", world.namespace)
    assert {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods} == {
        spec.pod_name: world.names[1],
        f"{spec.pod_name}-1": world.names[2],
    }
    assert all(pod["status"]["qosClass"] == "Guaranteed" for pod in pods)


async def test_the_way_in_is_the_node_and_the_port_that_the_api_server_chose(world: KubernetesWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    service = await world.api.get("services", spec.pod_name, world.namespace)
    secret = await world.api.get("secrets", spec.pod_name, world.namespace)
    assert seen.connection is not None
    assert seen.connection.port == service["spec"]["ports"][0]["nodePort"]
    assert seen.connection.host == "10.20.0.2"
    assert "PRIVATE KEY" in _file(secret, "host_key")
    assert seen.connection.host_key == secret["metadata"]["annotations"][labels.HOST_KEY]


async def test_all_that_was_made_is_gone_after_the_end(world: KubernetesWorld) -> None:
    spec = world.spec(nodes=2)
    await world.ready(spec)
    kinds = [kind for kind, _ in await world.objects_of(spec.reservation_id)]
    assert kinds == ["pods", "pods", "services", "services", "secrets", "networkpolicies"]
    await world.gone(spec.reservation_id)
    assert await world.objects_of(spec.reservation_id) == []


async def test_what_carries_the_reservations_id_is_ended_whoever_made_it(world: KubernetesWorld) -> None:
    spec = world.spec()
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: str(spec.reservation_id)}
    service = {"metadata": {"name": "left-behind", "labels": marks}, "spec": {"ports": [{"port": 80}]}}
    await world.api.create("services", service, world.namespace)
    await world.gone(spec.reservation_id)
    assert await world.api.find("services", "left-behind", world.namespace) is None


@pytest.mark.parametrize("kind", ["secrets", "services", "pods"])
async def test_an_object_of_another_reservation_is_never_touched(world: KubernetesWorld, kind: str) -> None:
    spec, other = world.spec(), world.spec()
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: str(other.reservation_id)}
    content: dict[str, Object] = {
        "secrets": {"data": {"host_key": "AAAA"}},
        "services": {"spec": {"ports": [{"port": 80}]}},
        "pods": {"spec": {"containers": [{"name": "theirs", "image": "theirs:1"}]}},
    }
    manifest = {"metadata": {"name": spec.pod_name, "labels": marks}, **content[kind]}
    theirs = await world.api.create(kind, manifest, world.namespace)
    with pytest.raises(ClusterError, match="does not belong to this reservation"):
        await world.cluster.ensure_server(spec)
    await taken_back(world, spec)
    await world.gone(spec.reservation_id)
    after = await world.api.get(kind, spec.pod_name, world.namespace)
    assert after["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert after.get("data") == theirs.get("data")


async def test_an_object_that_somebody_made_by_hand_is_never_touched(world: KubernetesWorld) -> None:
    spec = world.spec()
    await world.api.create(
        "services", {"metadata": {"name": spec.pod_name}, "spec": {"ports": [{"port": 80}]}}, world.namespace
    )
    with pytest.raises(ClusterError, match="does not belong to this reservation"):
        await world.cluster.ensure_server(spec)
    assert await world.api.find("services", spec.pod_name, world.namespace) is not None


async def test_a_gang_that_is_refused_half_way_leaves_nothing(world: KubernetesWorld) -> None:
    quota = {"metadata": {"name": "one-pod"}, "spec": {"hard": {"pods": "1"}}}
    await world.api.create("resourcequotas", quota, world.namespace)
    await world.api.wait("resourcequotas", "one-pod", world.namespace, lambda one: "used" in one.get("status", {}))
    spec = world.spec(nodes=2)
    with pytest.raises(ClusterError, match="quota"):
        await world.cluster.ensure_server(spec)
    await taken_back(world, spec)


async def test_a_refusal_takes_nothing_from_a_dev_server_that_runs(world: KubernetesWorld) -> None:
    spec = world.spec(nodes=2)
    await world.ready(spec)
    await world.api.delete("pods", f"{spec.pod_name}-1", world.namespace, grace=0)
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    quota = {"metadata": {"name": "one-pod"}, "spec": {"hard": {"pods": "1"}}}
    await world.api.create("resourcequotas", quota, world.namespace)
    await world.api.wait("resourcequotas", "one-pod", world.namespace, lambda one: "used" in one.get("status", {}))
    with pytest.raises(ClusterError, match="quota"):
        await world.cluster.ensure_server(spec)
    assert await world.api.find("pods", spec.pod_name, world.namespace) is not None
    assert await world.api.find("secrets", spec.pod_name, world.namespace) is not None


async def test_new_keys_reach_a_dev_server_that_runs_and_who_it_is_stays(world: KubernetesWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    before = await world.api.get("secrets", spec.pod_name, world.namespace)
    pod = await world.api.get("pods", spec.pod_name, world.namespace)
    changed = server_spec(
        world.names[0],
        reservation_id=spec.reservation_id,
        pod_name=spec.pod_name,
        ssh_public_keys=("ssh-ed25519 BBBB new",),
    )
    await world.cluster.ensure_server(changed)
    after = await world.api.get("secrets", spec.pod_name, world.namespace)
    assert _file(after, "authorized_keys") == "ssh-ed25519 BBBB new\n"
    assert after["data"]["host_key"] == before["data"]["host_key"]
    assert (await world.api.get("pods", spec.pod_name, world.namespace))["metadata"]["uid"] == pod["metadata"]["uid"]


async def test_one_that_was_planned_anew_moves_to_its_new_node(world: KubernetesWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    moved = server_spec(world.names[1], reservation_id=spec.reservation_id, pod_name=spec.pod_name)
    await world.cluster.ensure_server(moved)
    pod = await world.api.wait("pods", spec.pod_name, world.namespace, lambda pod: "nodeName" in pod["spec"])
    assert pod["spec"]["nodeName"] == world.names[1]


async def test_a_damaged_secret_is_said_and_not_replaced(world: KubernetesWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    await world.api.patch("secrets", spec.pod_name, {"data": {"host_key": "AAAA"}}, world.namespace)
    with pytest.raises(ClusterError, match="cannot be read"):
        await world.cluster.ensure_server(spec)
    assert (await world.api.get("secrets", spec.pod_name, world.namespace))["data"]["host_key"] == "AAAA"


async def test_a_disk_that_was_named_is_never_replaced_by_scratch(world: KubernetesWorld) -> None:
    with pytest.raises(ClusterError, match="'work' cannot be attached"):
        await world.cluster.ensure_server(world.spec(disk_id=new_disk_id(), disk_name="work"))


async def test_shared_storage_is_made_once_per_user_and_outlives_the_reservation(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace, shared_storage_class="nfs") as world:
        first, second = world.spec(username="ada@x.org"), world.spec(username="ada@x.org")
        await world.cluster.ensure_server(first)
        await world.cluster.ensure_server(second)
        [claim] = await kube_api.list("persistentvolumeclaims", namespace)
        for spec in (first, second):
            pod = await kube_api.get("pods", spec.pod_name, namespace)
            [volume] = [one for one in pod["spec"]["volumes"] if one["name"] == "workspace"]
            assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
            await world.gone(spec.reservation_id)
        assert len(await kube_api.list("persistentvolumeclaims", namespace)) == 1


async def test_anothers_storage_is_never_mounted(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    async with KubernetesWorld(kube, kube_api, fake_nodes, namespace, shared_storage_class="nfs") as world:
        claim = {
            "metadata": {"name": labels.shared_claim_name("ada"), "annotations": {labels.USERNAME: "eve"}},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        await kube_api.create("persistentvolumeclaims", claim, namespace)
        with pytest.raises(ClusterError, match="does not belong to ada"):
            await world.cluster.ensure_server(world.spec())


async def test_the_namespace_and_its_policy_are_there_before_the_first_dev_server(world: KubernetesWorld) -> None:
    policy = await world.api.get("networkpolicies", "gpu-dev-servers", world.namespace)
    assert policy["spec"]["podSelector"] == {"matchLabels": {labels.MANAGED_BY: labels.MANAGER}}


async def test_a_namespace_of_our_own_lets_in_nothing_above_baseline(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    own = f"{namespace}-made"
    async with KubernetesWorld(kube, kube_api, fake_nodes, own) as world:
        try:
            await world.ready(world.spec())
            privileged = {"name": "x", "image": "x:1", "securityContext": {"privileged": True}}
            with pytest.raises(Exception, match="violates PodSecurity"):
                await kube_api.create("pods", {"metadata": {"name": "x"}, "spec": {"containers": [privileged]}}, own)
        finally:
            await kube_api.delete("namespaces", own)
