"""Access without the cache, for commands: cluster state, machines, removal of pods.

Nodes and pods are listed once; nothing is watched. States are computed from the same records as in the cache. Only the
JSON fields that these need are decoded, so that an observation takes little longer than the download.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gpudev.adapters.kubernetes.cache import object_records
from gpudev.adapters.kubernetes.cache.object_records import (
    NodeRecord,
    PodRecord,
    ServerParts,
    to_node_record,
    to_pod_record,
)
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, ResourceVersionExpired, connect_api
from gpudev.adapters.kubernetes.client.resource_kinds import NODE, POD, Manifest
from gpudev.adapters.kubernetes.observation.node_state import compute_node_states
from gpudev.adapters.kubernetes.observation.server_state import compute_server_state
from gpudev.domain.cluster import Catalogue
from gpudev.domain.ids import ReservationId
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterState, NodeMachine, NodePod, ServerState
from gpudev.settings import KubernetesSettings

_T = TypeVar("_T")
_PAGE = 500


class UncachedCluster:
    def __init__(
        self,
        settings: KubernetesSettings,
        catalogue: Callable[[], Awaitable[Catalogue]],
        clock: Clock,
        *,
        api: KubernetesApi | None = None,
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._clock = clock
        self._api = api or connect_api(settings)

    async def close(self) -> None:
        await self._api.close()

    async def observe(self) -> ClusterState:
        """Complete, or it raises."""
        at = self._clock.now()
        catalogue = await self._catalogue()
        listing_nodes = asyncio.ensure_future(self._retry_if_expired(self._list_nodes))
        listing_pods = asyncio.ensure_future(self._retry_if_expired(self._list_pods))
        try:
            nodes, (by_node, own) = await asyncio.gather(listing_nodes, listing_pods)
        finally:  # if one fails, the other is cancelled
            listing_nodes.cancel()
            listing_pods.cancel()
            await asyncio.wait({listing_nodes, listing_pods})
        states = compute_node_states(nodes.values(), lambda name: by_node.get(name, ()), catalogue, self._settings)
        return ClusterState(at, states.nodes, self._server_states(own, nodes))

    async def _list_nodes(self) -> dict[str, NodeRecord]:
        found: dict[str, NodeRecord] = {}
        async for page in self._api.list_pages(NODE, size=_PAGE, shape=object_records.NodeFields):
            for item in page.items:
                node = to_node_record(item, self._settings.gpu_type_label, self._settings.gpu_resource)
                found[node.name] = node
        return found

    async def _list_pods(self) -> tuple[dict[str, list[PodRecord]], dict[ReservationId, list[PodRecord]]]:
        """All pods by node, and our own by reservation."""
        by_node: defaultdict[str, list[PodRecord]] = defaultdict(list)
        own: defaultdict[ReservationId, list[PodRecord]] = defaultdict(list)
        async for page in self._api.list_pages(POD, size=_PAGE, shape=object_records.PodFields):
            for item in page.items:
                pod = self._to_pod_record(item)
                if pod is None:
                    continue
                if pod.node is not None:
                    by_node[pod.node].append(pod)
                if pod.member is not None:
                    own[pod.member.reservation_id].append(pod)
        return by_node, own

    def _to_pod_record(self, item: Manifest) -> PodRecord | None:
        return to_pod_record(item, self._settings.namespace, self._settings.gpu_resource)

    def _server_states(
        self, own: dict[ReservationId, list[PodRecord]], nodes: dict[str, NodeRecord]
    ) -> dict[ReservationId, ServerState]:
        now = self._clock.now()
        return {
            reservation_id: compute_server_state(ServerParts(reservation_id, pods), nodes, now, self._settings).state
            for reservation_id, pods in own.items()
        }

    async def _retry_if_expired(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Between two pages the listed version may expire; then start again from the first page."""
        try:
            return await read()
        except ResourceVersionExpired:
            return await read()


# Machines of nodes, and removal of pods whose node no longer answers.


class KubernetesMachines:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def close(self) -> None:
        await self._api.close()

    async def nodes(self) -> Sequence[NodeMachine]:
        nodes, _ = await self._api.list_objects(NODE, all_namespaces=True)
        return [
            NodeMachine(node["metadata"]["name"], _machine_name(node["spec"].get("providerID", ""))) for node in nodes
        ]

    async def pods_on(self, node: str) -> Sequence[NodePod]:
        pods: list[NodePod] = []
        async for page in self._api.list_pages(
            POD, namespace=self._api.namespace, field_selector=f"spec.nodeName={node}"
        ):
            pods += [NodePod(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in page.items]
        return pods

    async def remove_pod(self, pod: NodePod) -> None:
        await self._api.delete(POD, pod.name, uid=pod.uid, grace_seconds=0)


def _machine_name(provider_id: str) -> str:
    """The last part of aws:///us-west-1a/i-0123 or gce://project/zone/name."""
    return provider_id.rpartition("/")[2]
