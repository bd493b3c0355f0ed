"""The mirror of a real cluster, over good lines and bad ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from gpudev.adapters.kubernetes.cache.cluster_cache import ClusterCache
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, ListPage, connect_api
from gpudev.adapters.kubernetes.client.resource_kinds import NODE, POD, SERVICE, ResourceKind
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.observation.node_state import compute_node_states
from gpudev.adapters.kubernetes.observation.server_state import compute_server_state
from gpudev.domain.cluster import load_catalogue
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId, new_reservation_id, pod_name
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase
from gpudev.settings import KubernetesSettings
from support.kubernetes.api import KubeApi
from support.kubernetes.bad_line import CuttingProxy
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.polling import eventually_async

pytestmark = pytest.mark.slow
SOON = timedelta(seconds=20)


def settings_for(kubeconfig: Any, namespace: str, **more: Any) -> KubernetesSettings:
    """Everything faster than in life."""
    timing = {"stale_after": timedelta(seconds=3)}
    return KubernetesSettings(kubeconfig=str(kubeconfig), namespace=namespace, **{**timing, **more})


@asynccontextmanager
async def mirrored(settings: KubernetesSettings, api: KubernetesApi | None = None) -> AsyncIterator[ClusterCache]:
    api = api or connect_api(settings)
    mirror = ClusterCache(api, settings, SystemClock())
    mirror.start()
    try:
        await mirror.wait_until_listed(SOON)
        yield mirror
    finally:
        await mirror.close()
        await api.close()


def object_counts(mirror: ClusterCache) -> dict[str, int]:
    return {one.kind.plural: len(one._store) for one in mirror.reflectors}


def own_pod(rid: ReservationId, node: str | None = None, *, rank: int = 0, members: int = 1, gpus: int = 1) -> Any:
    marks = {
        labels.MANAGED_BY: labels.MANAGER,
        labels.RESERVATION_ID: str(rid),
        labels.RANK: str(rank),
        labels.MEMBERS: str(members),
    }
    name = labels.member_name(pod_name(rid), rank)
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec: dict[str, Any] = {"containers": [{"name": "dev", "image": "example.test/dev:1", "resources": limits}]}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": {"name": name, "labels": marks, "annotations": {labels.HOST_KEY: "key"}}, "spec": spec}


def own_service(rid: ReservationId) -> Any:
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: str(rid)}
    spec = {"type": "NodePort", "selector": marks, "ports": [{"port": 22}]}
    return {"metadata": {"name": pod_name(rid), "labels": marks}, "spec": spec}


def foreign_pod(node: str | None, gpus: int = 1) -> Any:
    containers = [{"name": "a", "image": "b", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
    spec = {"containers": containers, **({"nodeName": node} if node else {"schedulingGates": [{"name": "x/y"}]})}
    return {"metadata": {"name": f"foreign-{uuid4().hex[:6]}"}, "spec": spec}


async def test_the_mirror_shows_nodes_pods_and_services_as_they_come_and_go(
    kube: Cluster, kube_api: KubeApi, namespace: str, fake_nodes: FakeNodes
) -> None:
    first = await fake_nodes.add("n1", gpus=8, external_ip="198.51.100.7")
    rid = new_reservation_id()
    settings = settings_for(kube.kubeconfig, namespace)
    async with mirrored(settings) as mirror:
        assert first in mirror.nodes
        await kube_api.create("pods", own_pod(rid, first, gpus=2), namespace)
        await kube_api.create("services", own_service(rid), namespace)
        await kube_api.create("pods", foreign_pod(first, 3), "default")

        def facts() -> Any:
            return compute_server_state(mirror.get_server_parts(rid), mirror.nodes, SystemClock().now(), settings).state

        await eventually_async(lambda: facts().phase is ServerPhase.READY)
        assert facts().connection.host == "198.51.100.7"
        assert 30000 <= facts().connection.port <= 32767
        await eventually_async(lambda: len(mirror.pods_on(first)) == 2)
        seen = compute_node_states(mirror.nodes.values(), mirror.pods_on, load_catalogue(), settings)
        (node,) = [one for one in seen.nodes if one.name == first]
        assert (node.units, node.foreign_units, node.offers) == (8, 3, True)
        await fake_nodes.cordon(first)
        await eventually_async(lambda: mirror.nodes[first].cordoned)
        mirror.expect_removal(rid)
        await kube_api.delete("pods", pod_name(rid), namespace)
        await kube_api.delete("services", pod_name(rid), namespace)
        await eventually_async(lambda: rid not in mirror.reservation_ids())
        assert object_counts(mirror)["services"] == 0


async def test_an_answer_of_the_api_server_shows_before_the_watch_tells(kube: Cluster, namespace: str) -> None:
    rid = new_reservation_id()
    settings = settings_for(kube.kubeconfig, namespace)
    async with mirrored(settings) as mirror:
        api = connect_api(settings)
        made = await api.create({"apiVersion": "v1", "kind": "Pod", **own_pod(rid)})
        mirror.record_write_response(made)
        assert rid in mirror.reservation_ids()
        await api.delete(POD, pod_name(rid), grace_seconds=0)
        await eventually_async(lambda: mirror.get_server_parts(rid).gone)
        mirror.record_write_response(made)
        assert not mirror.get_server_parts(rid).pods
        await api.close()


async def test_listeners_hear_of_what_matters_and_of_nothing_else(
    kube: Cluster, kube_api: KubeApi, namespace: str, fake_nodes: FakeNodes
) -> None:
    node = await fake_nodes.add("n1")
    async with mirrored(settings_for(kube.kubeconfig, namespace)) as mirror:
        changes = mirror.changes()
        with pytest.raises(TimeoutError):  # whatever is still on its way
            while True:
                await asyncio.wait_for(anext(changes), 1.5)
        await kube_api.patch("nodes", node, {"metadata": {"annotations": {"heartbeat": "1"}}})
        await kube_api.create("pods", foreign_pod(None), "default")
        before = [one.watch_count for one in mirror.reflectors]
        hearing = asyncio.create_task(_next(changes))
        # One watch ended and one began since, so both have long been told.
        await eventually_async(
            lambda: all(one.watch_count > then + 1 for one, then in zip(mirror.reflectors, before, strict=True))
        )
        assert not hearing.done()
        await fake_nodes.cordon(node)
        await asyncio.wait_for(hearing, 20)
        await kube_api.create("pods", foreign_pod(node), "default")
        await asyncio.wait_for(anext(changes), 20)


async def test_many_changes_at_once_come_as_few(kube: Cluster, kube_api: KubeApi, namespace: str) -> None:
    async with mirrored(settings_for(kube.kubeconfig, namespace)) as mirror:
        changes = mirror.changes()
        rids = [new_reservation_id() for _ in range(20)]
        await asyncio.gather(*(kube_api.create("services", own_service(rid), namespace) for rid in rids))
        await eventually_async(lambda: object_counts(mirror)["services"] == 20)
        await asyncio.wait_for(anext(changes), 20)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(changes), 0.3)


async def test_a_watch_that_is_cut_again_and_again_loses_no_event_and_lists_once(
    own_control_plane: ControlPlane,
) -> None:
    plane, namespace = own_control_plane, "default"
    kube_api = await KubeApi.connect(plane.kubeconfig)
    async with CuttingProxy(plane.port, every=0.4) as line:
        settings = settings_for(plane.kubeconfig_with(server=line.url), namespace, stale_after=timedelta(seconds=10))
        async with mirrored(settings) as mirror:
            pods = mirror.reflectors[1]
            listings = pods.list_count
            rids = [new_reservation_id() for _ in range(60)]
            for rid in rids:
                await kube_api.create("pods", own_pod(rid), namespace)
                await asyncio.sleep(0.05)  # spread over several cuts of the line
                await kube_api.delete("pods", pod_name(rid), namespace, grace=0)
            # Every one of them lived only for a moment; the trace it left proves that its end was heard of.
            await eventually_async(lambda: all(mirror.get_server_parts(rid).gone for rid in rids))
            assert all(one.was_observed for rid in rids for one in mirror.get_server_parts(rid).gone)
            assert line.cuts > 10
            assert pods.list_count == listings
            mirror.check_fresh()
    await kube_api.close()


async def test_forgotten_history_is_listed_anew_and_what_went_meanwhile_is_noticed(
    own_control_plane: ControlPlane,
) -> None:
    plane, namespace = own_control_plane, "default"
    kube_api = await KubeApi.connect(plane.kubeconfig)
    stays, goes, comes = (new_reservation_id() for _ in range(3))
    for rid in (stays, goes):
        await kube_api.create("pods", own_pod(rid), namespace)
    async with CuttingProxy(plane.port) as line:
        # Patient enough to try to resume where it was, as after a short cut.
        settings = settings_for(plane.kubeconfig_with(server=line.url), namespace, stale_after=timedelta(minutes=5))
        async with mirrored(settings) as mirror:
            listings = mirror.reflectors[1].list_count
            line.fall_silent()
            await kube_api.delete("pods", pod_name(goes), namespace, grace=0)
            await kube_api.create("pods", own_pod(comes), namespace)
            await kube_api.close()
            await asyncio.to_thread(plane.forget_history)
            line.speak_again()
            await line.cut()
            await eventually_async(lambda: mirror.get_server_parts(comes).pods, 40)
            assert mirror.reflectors[1].list_count == listings + 1
            assert mirror.get_server_parts(stays).pods
            (trace,) = mirror.get_server_parts(goes).gone
            assert not trace.was_observed
            seen = compute_server_state(
                mirror.get_server_parts(goes), mirror.nodes, SystemClock().now(), settings
            ).state
            assert seen.phase is ServerPhase.DEAD


async def test_a_killed_api_server_makes_the_mirror_stale_and_changes_nothing(own_control_plane: ControlPlane) -> None:
    plane, namespace = own_control_plane, "default"
    kube_api = await KubeApi.connect(plane.kubeconfig)
    rid, late = new_reservation_id(), new_reservation_id()
    await kube_api.create("pods", own_pod(rid), namespace)
    await kube_api.create("services", own_service(rid), namespace)
    settings = settings_for(plane.kubeconfig, namespace)
    async with mirrored(settings) as mirror:
        sizes = object_counts(mirror)
        await asyncio.to_thread(plane.kill_apiserver)
        killed_at = SystemClock().now()

        def is_stale() -> bool:
            try:
                mirror.check_fresh()
            except Unavailable as error:
                return "does not answer" in str(error)
            return False

        await eventually_async(is_stale, 10)
        assert SystemClock().now() - killed_at >= settings.stale_after - settings.watch_timeout
        assert object_counts(mirror) == sizes
        assert mirror.get_server_parts(rid).pods and not mirror.get_server_parts(rid).gone
        await asyncio.to_thread(plane.start_apiserver)
        await kube_api.create("pods", own_pod(late), namespace)
        await eventually_async(lambda: not is_stale() and mirror.get_server_parts(late).pods)
        assert mirror.check_fresh() > killed_at
        assert not mirror.get_server_parts(rid).gone
    await kube_api.close()


async def test_a_line_that_falls_silent_makes_the_mirror_stale(kube: Cluster, namespace: str) -> None:
    async with CuttingProxy(int(kube.url.rsplit(":", 1)[1])) as line:
        settings = settings_for(kube.kubeconfig_with(server=line.url), namespace)
        async with mirrored(settings) as mirror:
            line.fall_silent()
            with pytest.raises(Unavailable, match="have not been updated"):
                await eventually_async(lambda: _check_fresh(mirror))
            line.speak_again()
            await line.cut()
            await eventually_async(lambda: _is_fresh(mirror))


def _check_fresh(mirror: ClusterCache) -> None:
    """As a claim that never comes true: it ends by raising."""
    mirror.check_fresh()


async def test_an_idle_cluster_stays_fresh(kube: Cluster, namespace: str, kube_api: KubeApi) -> None:
    """Nothing happens for longer than the mirror may be stale: ends and beginnings of watches are signs of life."""
    async with mirrored(settings_for(kube.kubeconfig, namespace)) as mirror:
        for _ in range(60):
            await asyncio.sleep(0.1)  # for longer than watches last, in real time
            mirror.check_fresh()
        assert [one.list_count for one in mirror.reflectors] == [1, 1, 1]
        for kind in (NODE, POD, SERVICE):
            fresh_at = next(one.fresh_at for one in mirror.reflectors if one.kind is kind)
            assert fresh_at is not None
            assert SystemClock().now() - fresh_at < timedelta(seconds=2.5)


class Interrupted(KubernetesApi):
    """Its listings have small pages and, when told so, break off after the first."""

    breaks = False
    broken = 0

    async def list_pages(self, kind: ResourceKind, **more: Any) -> AsyncIterator[ListPage]:  # type: ignore[override]
        async for page in super().list_pages(kind, **{**more, "size": 2}):
            yield page
            if self.breaks:
                self.broken += 1
                raise Unavailable("the line was cut in the middle of a listing")


async def test_a_listing_that_breaks_off_changes_nothing(kube: Cluster, kube_api: KubeApi, namespace: str) -> None:
    rids = [new_reservation_id() for _ in range(5)]
    for rid in rids:
        await kube_api.create("pods", own_pod(rid), namespace)
    settings = settings_for(kube.kubeconfig, namespace)
    source = connect_api(settings)
    api = Interrupted(source._transport._credentials, namespace)
    await source.close()
    async with mirrored(settings, api) as mirror:
        pods = mirror.reflectors[1]
        assert len(mirror.reservation_ids()) == 5
        api.breaks, pods._needs_list = True, True
        await eventually_async(lambda: api.broken >= 3)
        assert len(mirror.reservation_ids()) == 5
        assert not any(mirror.get_server_parts(rid).gone for rid in rids)
        assert pods.list_count == 1
        api.breaks = False
        await eventually_async(lambda: pods.list_count == 2)


async def test_a_server_that_is_not_there_at_the_start_is_named(kube: Cluster, namespace: str) -> None:
    settings = settings_for(kube.kubeconfig_with(token="wrong"), namespace)
    api = connect_api(settings)
    mirror = ClusterCache(api, settings, SystemClock())
    mirror.start()
    with pytest.raises(Unavailable, match="rejects our credentials"):
        await mirror.wait_until_listed(timedelta(seconds=1))
    await mirror.close()
    await api.close()


async def _next(changes: AsyncIterator[None]) -> None:
    await anext(changes)


def _is_fresh(mirror: ClusterCache) -> bool:
    try:
        mirror.check_fresh()
    except Unavailable:
        return False
    return True
