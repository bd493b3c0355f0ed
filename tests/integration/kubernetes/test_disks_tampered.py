"""Disks on a real control plane where others meddle: what stands for a volume is removed, kept or taken by somebody. No
CSI driver runs here."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpudev.adapters.kubernetes.objects.labels import home_volume_name
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cluster import ServerPhase, ServerSpec
from support.kubernetes.api import KubeApi
from support.kubernetes.control_plane import Cluster
from support.kubernetes.disk_world import ON_AWS, DiskWorld
from support.kubernetes.fake_nodes import FakeNodes
from support.polling import until_it_succeeds

pytestmark = pytest.mark.slow
KEEP = {"metadata": {"finalizers": ["example.com/not-yet"]}}
LET_GO = {"metadata": {"finalizers": None}}


@pytest.fixture
async def world(kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str) -> AsyncIterator[DiskWorld]:
    async with DiskWorld(kube, kube_api, fake_nodes, namespace, **ON_AWS) as world:
        yield world
    for one in await kube_api.list("persistentvolumes"):  # they are no namespace's, and would outlive the test's
        if one["spec"].get("claimRef", {}).get("namespace") == namespace:
            await kube_api.patch("persistentvolumes", one["metadata"]["name"], LET_GO)
            await kube_api.delete("persistentvolumes", one["metadata"]["name"])


async def _stays_for_a_while(world: DiskWorld, spec: ServerSpec) -> None:
    for _ in range(5):
        assert not await world.cluster.ensure_gone(spec.reservation_id)
        await asyncio.sleep(0.2)  # the API server's controllers work in real time


async def test_a_volume_object_that_has_failed_is_made_anew(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.ready(spec)
    name = home_volume_name(spec.pod_name)
    await world.api.delete("persistentvolumeclaims", name, world.namespace)
    await world.api.delete("pods", spec.pod_name, world.namespace, grace=0)
    await world.api.wait_gone("persistentvolumeclaims", name, world.namespace)
    await world.api.patch("persistentvolumes", name, {"status": {"phase": "Failed"}}, subresource="status")
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    await world.ready(spec)
    persistent, _ = await world.both_bound(spec)
    assert persistent["spec"]["csi"]["volumeHandle"] == world.volume.volume_id


@pytest.mark.parametrize("kind", ["persistentvolumeclaims", "pods"])
async def test_nobody_has_the_volume_next_while_anything_of_the_one_before_does_not_go(
    world: DiskWorld, kind: str
) -> None:
    first, second = world.with_disk(), world.with_disk()
    await world.ready(first)
    name = first.pod_name if kind == "pods" else home_volume_name(first.pod_name)
    await world.api.patch(kind, name, KEEP, world.namespace)
    await _stays_for_a_while(world, first)
    with pytest.raises(Unavailable, match="still in use by another dev server"):
        await world.cluster.ensure_server(second)
    await world.api.patch(kind, name, LET_GO, world.namespace)
    await world.gone(first.reservation_id)
    await world.ready(second)


async def test_a_claim_of_somebody_else_in_our_place_is_never_touched(world: DiskWorld) -> None:
    spec = world.with_disk()
    name = home_volume_name(spec.pod_name)
    theirs = {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOncePod"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    made = await world.api.create("persistentvolumeclaims", theirs, world.namespace)
    with pytest.raises(ClusterError, match="does not belong to this reservation"):
        await until_it_succeeds(lambda: world.cluster.ensure_server(spec), Unavailable)
    assert await world.api.list("pods", world.namespace) == [], "never on anything else"
    await world.gone(spec.reservation_id)
    after = await world.api.get("persistentvolumeclaims", name, world.namespace)
    assert after["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_disk_comes_back_in_a_namespace_that_somebody_removed(world: DiskWorld) -> None:
    spec = world.with_disk()
    await world.ready(spec)
    await world.api.delete("namespaces", world.namespace)
    await world.api.wait_gone("pods", spec.pod_name, world.namespace)
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    # Sooner than when everything is looked after, once a minute.
    await until_it_succeeds(lambda: world.cluster.ensure_server(spec), Unavailable, within=45)
    persistent, _ = await world.both_bound(spec)
    assert persistent["spec"]["csi"]["volumeHandle"] == world.volume.volume_id
    await world.gone(spec.reservation_id)
