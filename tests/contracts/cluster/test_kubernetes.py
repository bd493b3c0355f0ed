"""Kubernetes keeps every cluster's promises: a real API server, scheduler and controllers; KWOK plays the nodes."""

from collections.abc import AsyncIterator

import pytest

from contracts.cluster_contract import ClusterContract, ClusterWorld
from support.kubernetes.api import KubeApi
from support.kubernetes.cluster_world import KubernetesWorld
from support.kubernetes.control_plane import Cluster
from support.kubernetes.fake_nodes import FakeNodes


@pytest.mark.slow
class TestKubernetesCluster(ClusterContract):
    @pytest.fixture
    async def world(
        self, kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes, namespace: str
    ) -> AsyncIterator[ClusterWorld]:
        async with KubernetesWorld(kube, kube_api, fake_nodes, namespace) as world:
            yield world
