"""A Kubernetes cluster for the tests of `KubernetesCluster`: three nodes that KWOK plays, and a control plane of ours
that can go and come back."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from contracts.cluster_contract import ClusterWorld
from gpudev.adapters.kubernetes.cluster import KubernetesCluster
from gpudev.adapters.kubernetes.objects.labels import member_name, reservation_selector
from gpudev.domain.cluster import load_catalogue
from gpudev.domain.ids import ReservationId, pod_name
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import KubernetesSettings
from support.kubernetes.api import KubeApi, Object
from support.kubernetes.control_plane import Cluster
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.server_specs import server_spec

KINDS = ("pods", "services", "secrets", "networkpolicies")


class KubernetesWorld(ClusterWorld):
    cluster: KubernetesCluster

    def __init__(self, kube: Cluster, api: KubeApi, nodes: FakeNodes, namespace: str, **settings: Any) -> None:
        self.api = api
        self.nodes = nodes
        self.namespace = namespace
        self.settings = replace(
            KubernetesSettings(kubeconfig=str(kube.kubeconfig), access="kubeconfig", namespace=namespace), **settings
        )
        self.names: list[str] = []

    async def __aenter__(self) -> "KubernetesWorld":
        self.names = [await self.nodes.add(name, gpus=8, gpu_type="h100") for name in ("a", "b", "c")]
        for name in self.names:  # new nodes are closed until the controllers have seen that they are ready
            await self.api.wait("nodes", name, None, lambda node: not node["spec"].get("taints"))
        self.cluster = await self.open_cluster()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.close()

    async def open_cluster(self) -> KubernetesCluster:
        cluster = KubernetesCluster(self.settings, load_catalogue(), SystemClock())
        await cluster.start()
        return cluster

    def spec(self, *, nodes: int = 1, **changes: Any) -> ServerSpec:
        """Single ones share the first node; gangs have the others whole."""
        if nodes == 1:
            return server_spec(self.names[0], **changes)
        return server_spec(*self.names[1 : 1 + nodes], units=8, **changes)

    async def kill(self, reservation_id: ReservationId) -> None:
        await self.play(reservation_id, "crash:3")
        await self.api.wait(
            "pods", pod_name(reservation_id), self.namespace, lambda pod: pod["status"].get("phase") == "Failed"
        )

    async def play(self, reservation_id: ReservationId, what: str, rank: int = 0) -> None:
        await self.api.play(member_name(pod_name(reservation_id), rank), self.namespace, what)

    @contextlib.asynccontextmanager
    async def nobody_watching(self) -> AsyncIterator[None]:
        await self.cluster.close()
        yield
        self.cluster = await self.open_cluster()

    async def objects_of(self, reservation_id: ReservationId) -> list[tuple[str, Object]]:
        """All there is of it, by the API server's own word."""
        return [
            (kind, one)
            for kind in KINDS
            for one in await self.api.list(kind, self.namespace, selector=reservation_selector(reservation_id))
        ]
