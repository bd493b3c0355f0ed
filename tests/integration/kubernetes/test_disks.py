"""Disks on a real control plane: what stands for a volume is bound by the real controllers and ends with its
reservation. No CSI driver runs here: that a volume is attached, mounted, formatted and detached was not tested."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gpudev.adapters.kubernetes.client.rbac import (
    CLUSTER_RULES,
    DISK_CLUSTER_RULES,
    DISK_NAMESPACE_RULES,
    NAMESPACE_RULES,
    TEARDOWN_DISK_CLUSTER_RULES,
    TEARDOWN_NAMESPACE_RULES,
)
from gpudev.adapters.kubernetes.cluster import KubernetesCluster
from gpudev.adapters.kubernetes.objects import labels
from gpudev.domain.cluster import load_catalogue
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import new_disk_id
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase
from support.kubernetes.api import KubeApi, Object
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.disk_world import ON_AWS, DiskWorld, is_bound
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.rbac_grants import grant_rights, revoke_rights
from support.polling import eventually_async

pytestmark = pytest.mark.slow


def _unschedulable(pod: Object) -> str:
    """Why, in the scheduler's words."""
    conditions = pod["status"].get("conditions", ())
    return "".join(one.get("message", "") for one in conditions if one.get("reason") == "Unschedulable")


@pytest.fixture
async def world(kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str) -> AsyncIterator[DiskWorld]:
    async with DiskWorld(kube, kube_api, fake_nodes, namespace, **ON_AWS) as world:
        yield world
    for one in await kube_api.list("persistentvolumes"):  # they are no namespace's, and would outlive the test's
        if one["spec"].get("claimRef", {}).get("namespace") == namespace:
            await kube_api.patch("persistentvolumes", one["metadata"]["name"], {"metadata": {"finalizers": None}})
            await kube_api.delete("persistentvolumes", one["metadata"]["name"])


def _home(pod: Object) -> Object:
    [volume] = [one for one in pod["spec"]["volumes"] if one["name"] == "home"]
    return dict(volume)


async def test_a_disk_is_bound_before_the_pod_is_made_and_becomes_its_home(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.cluster.ensure_server(spec)
    claim = await world.api.get("persistentvolumeclaims", f"{spec.pod_name}-home", world.namespace)
    assert is_bound(claim), "the scheduler would put a pod without its volume aside"
    await world.until(spec.reservation_id, ServerPhase.READY)
    persistent, claim = await world.both_bound(spec)
    assert persistent["spec"]["csi"]["volumeHandle"] == world.volume.volume_id
    assert persistent["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    pod = await world.api.get("pods", spec.pod_name, world.namespace)
    assert _home(pod)["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}


async def test_what_stands_for_the_volume_ends_with_the_reservation(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.ready(spec)
    assert len(await world.volumes_of(spec.reservation_id)) == 2
    await world.gone(spec.reservation_id)
    assert await world.volumes_of(spec.reservation_id) == [], "nothing counts as gone while any of it is there"
    assert spec.reservation_id not in (await world.cluster.observe()).servers


async def test_the_next_reservation_has_the_same_volume(world: DiskWorld) -> None:
    first, second = world.with_disk(), world.with_disk()
    await world.ready(first)
    await world.gone(first.reservation_id)
    await world.ready(second)
    persistent, _ = await world.both_bound(second)
    assert persistent["spec"]["csi"]["volumeHandle"] == world.volume.volume_id


async def test_a_volume_that_another_dev_server_has_is_waited_for(world: DiskWorld) -> None:
    first, second = world.with_disk(), world.with_disk()
    await world.ready(first)
    with pytest.raises(Unavailable, match="still in use by another dev server"):
        await world.cluster.ensure_server(second)
    assert await world.objects_of(second.reservation_id) == []
    assert await world.volumes_of(second.reservation_id) == []
    await world.gone(first.reservation_id)
    await world.ready(second)


async def test_asking_again_makes_nothing_new_and_tells_how_the_volume_has_grown(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.ready(spec)
    before = await world.both_bound(spec)
    await world.cluster.ensure_server(replace(spec, volume=replace(world.volume, size_gb=50)))
    after = await world.both_bound(spec)
    assert [one["metadata"]["uid"] for one in before] == [one["metadata"]["uid"] for one in after]
    assert after[0]["spec"]["capacity"] == {"storage": "50Gi"}


async def test_a_dev_server_that_died_gets_its_disk_again(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.ready(spec)
    before, _ = await world.both_bound(spec)
    async with world.nobody_watching():
        await world.kill(spec.reservation_id)
    await world.ready(spec)
    after, _ = await world.both_bound(spec)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert "persistentVolumeClaim" in _home(await world.api.get("pods", spec.pod_name, world.namespace))


async def test_a_claim_that_somebody_removed_is_made_again_with_its_volume(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.ready(spec)
    name = f"{spec.pod_name}-home"
    await world.api.delete("persistentvolumeclaims", name, world.namespace)
    await world.api.delete("pods", spec.pod_name, world.namespace, grace=0)
    await world.api.wait("persistentvolumes", name, None, lambda one: one["status"]["phase"] == "Released")
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    await world.ready(spec)
    persistent, _ = await world.both_bound(spec)
    assert persistent["spec"]["csi"]["volumeHandle"] == world.volume.volume_id


async def test_another_volume_than_the_one_there_is_refused_and_the_one_there_stays(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.ready(spec)
    with pytest.raises(ClusterError, match=r"has another volume \(vol-[0-9a-f]+\)"):
        await world.cluster.ensure_server(replace(spec, volume=replace(world.volume, volume_id="vol-other")))
    persistent, _ = await world.both_bound(spec)
    assert persistent["spec"]["csi"]["volumeHandle"] == world.volume.volume_id


async def test_a_volume_object_of_somebody_else_is_never_touched(world: DiskWorld) -> None:
    spec = world.with_disk()
    theirs = {
        "metadata": {"name": f"{spec.pod_name}-home"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": world.namespace, "name": "theirs"},
        },
    }
    made = await world.api.create("persistentvolumes", theirs)
    with pytest.raises(ClusterError, match="does not belong to this reservation"):
        await world.cluster.ensure_server(spec)
    await world.gone(spec.reservation_id)
    after = await world.api.get("persistentvolumes", f"{spec.pod_name}-home")
    assert after["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_refused_start_takes_back_what_stood_for_its_volume(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.api.create(
        "services", {"metadata": {"name": spec.pod_name}, "spec": {"ports": [{"port": 80}]}}, world.namespace
    )
    with pytest.raises(ClusterError, match="does not belong to this reservation"):
        await world.cluster.ensure_server(spec)

    async def are_gone() -> bool:
        return not await world.volumes_of(spec.reservation_id)

    await eventually_async(are_gone, every=0.05)


async def test_the_scheduler_never_takes_a_disk_to_another_zone(world: DiskWorld) -> None:
    spec = world.with_disk(replace(world.volume, zone="zone-b"))  # and its node is in zone-a
    await world.cluster.ensure_server(spec)
    pod = await world.api.wait("pods", spec.pod_name, world.namespace, lambda pod: bool(_unschedulable(pod)))
    assert "nodeName" not in pod["spec"]
    assert "didn't match PersistentVolume's node affinity" in _unschedulable(pod)


async def test_a_named_disk_without_a_volume_is_refused(world: DiskWorld) -> None:
    for name in ("data", "default"):
        with pytest.raises(ClusterError, match=f"'{name}' cannot be attached"):
            await world.cluster.ensure_server(world.spec(disk_id=new_disk_id(), disk_name=name))


async def test_what_was_left_without_a_dev_server_is_seen_and_can_be_ended(world: DiskWorld) -> None:
    """As after a death between making the volume's objects and the pod, with the records lost."""
    spec, other = world.with_disk(), world.with_disk(replace(world.volume, volume_id="vol-2"))
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: str(spec.reservation_id)}
    left: Object = {
        "metadata": {"name": "left-behind", "labels": marks},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-left"},
            "claimRef": {"namespace": world.namespace, "name": "left-behind"},
        },
    }
    elsewhere: Object = {
        "metadata": {
            "name": f"elsewhere-{world.namespace}",
            "labels": {**marks, labels.RESERVATION_ID: str(other.reservation_id)},
        },
        "spec": {**left["spec"], "claimRef": {"namespace": "default", "name": "another-installation"}},
    }
    await world.api.create("persistentvolumes", left)
    await world.api.create("persistentvolumes", elsewhere)
    try:
        seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
        assert seen.is_restartable
        assert set((await world.cluster.observe()).servers) == {spec.reservation_id}, (
            "another installation's is not ours"
        )
        await world.gone(spec.reservation_id)
        assert await world.volumes_of(spec.reservation_id) == []
    finally:
        await world.api.delete("persistentvolumes", elsewhere["metadata"]["name"])


async def test_the_granted_rights_suffice_for_the_whole_life_of_a_disk(
    kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    among, everywhere = [*NAMESPACE_RULES, *DISK_NAMESPACE_RULES], [*CLUSTER_RULES, *DISK_CLUSTER_RULES]
    own = await grant_rights(kube_api, kube, namespace, among, everywhere)
    try:
        async with DiskWorld(kube, kube_api, fake_nodes, namespace, kubeconfig=own, **ON_AWS) as world:
            spec = world.with_disk()
            await world.ready(spec)
            await world.cluster.ensure_server(replace(spec, volume=replace(world.volume, size_gb=50)))
            await world.gone(spec.reservation_id)
            assert await world.volumes_of(spec.reservation_id) == []
    finally:
        await revoke_rights(kube_api, namespace)


async def test_fewer_rights_suffice_for_whoever_only_ends_it(world: DiskWorld, kube: Cluster) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    spec, place = world.with_disk(), world.namespace
    await world.ready(spec)
    among, everywhere = (
        [*TEARDOWN_NAMESPACE_RULES, *DISK_NAMESPACE_RULES],
        [*CLUSTER_RULES, *TEARDOWN_DISK_CLUSTER_RULES],
    )
    own = await grant_rights(world.api, kube, place, among, everywhere)
    ending = KubernetesCluster(
        replace(world.settings, kubeconfig=own), load_catalogue(), SystemClock(), starts_servers=False
    )
    try:
        await ending.start()
        await ending.send_message(spec.reservation_id, "it ends soon")
        await eventually_async(lambda: ending.ensure_gone(spec.reservation_id), every=0.1)
        assert await world.volumes_of(spec.reservation_id) == []
        assert await world.objects_of(spec.reservation_id) == []
        with pytest.raises(Unavailable, match="forbidden"):
            await ending.ensure_server(world.spec())
    finally:
        await ending.close()
        await revoke_rights(world.api, place)


async def test_nodes_tell_their_zone(world: DiskWorld) -> None:
    zones = {node.name: node.zone for node in (await world.cluster.observe()).nodes}
    assert [zones[name] for name in world.names] == ["zone-a", "zone-a", "zone-b"]
