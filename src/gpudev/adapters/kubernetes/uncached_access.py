"""One look at the cluster by whoever does not stay: nodes and pods are listed once and nothing is watched or written.

The facts are worked out as they are for the mirror, from the same trimmed records. Of each object only that is read
which they need, so that looking takes little longer than fetching.
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
from gpudev.adapters.kubernetes.client.rbac import CLUSTER_RULES, PolicyRule
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
OBSERVE_CLUSTER_RULES = tuple(PolicyRule(right.group, right.resources, ("list",)) for right in CLUSTER_RULES)
"""All that a look needs."""


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
        of_nodes = asyncio.ensure_future(self._retry_if_expired(self._list_nodes))
        of_pods = asyncio.ensure_future(self._retry_if_expired(self._list_pods))
        try:
            nodes, (by_node, own) = await asyncio.gather(of_nodes, of_pods)
        finally:  # where one of them fails, nobody waits for the other
            of_nodes.cancel()
            of_pods.cancel()
            await asyncio.wait({of_nodes, of_pods})
        seen = compute_node_states(nodes.values(), lambda name: by_node.get(name, ()), catalogue, self._settings)
        return ClusterState(at, seen.nodes, self._server_states(own, nodes))

    async def _list_nodes(self) -> dict[str, NodeRecord]:
        found: dict[str, NodeRecord] = {}
        async for page in self._api.list_pages(NODE, size=_PAGE, shape=object_records.NodeFields):
            for item in page.items:
                node = to_node_record(item, self._settings.gpu_type_label, self._settings.gpu_resource)
                found[node.name] = node
        return found

    async def _list_pods(self) -> tuple[dict[str, list[PodRecord]], dict[ReservationId, list[PodRecord]]]:
        """By node, and our own by reservation."""
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
        """Between two pages the API server may forget what it listed; from the start it is as if not begun."""
        try:
            return await read()
        except ResourceVersionExpired:
            return await read()


# Which node runs on which of the cloud's machines, and taking pods away whose node no longer answers for them.


NODE_MACHINES_CLUSTER_RULES = (PolicyRule("", ("nodes",), ("list",)),)
"""Only where there is a cloud whose machines nodes are."""
NODE_MACHINES_NAMESPACE_RULES = (PolicyRule("", ("pods",), ("list", "delete")),)
"""All that operators' commands need."""


class KubernetesMachines:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def close(self) -> None:
        await self._api.close()

    async def nodes(self) -> Sequence[NodeMachine]:
        found, _ = await self._api.list_objects(NODE, all_namespaces=True)
        return [NodeMachine(one["metadata"]["name"], _machine_name(one["spec"].get("providerID", ""))) for one in found]

    async def pods_on(self, node: str) -> Sequence[NodePod]:
        there: list[NodePod] = []
        async for page in self._api.list_pages(
            POD, namespace=self._api.namespace, field_selector=f"spec.nodeName={node}"
        ):
            there += [NodePod(one["metadata"]["name"], one["metadata"]["uid"]) for one in page.items]
        return there

    async def remove_pod(self, pod: NodePod) -> None:
        await self._api.delete(POD, pod.name, uid=pod.uid, grace_seconds=0)


def _machine_name(provider_id: str) -> str:
    """aws:///us-west-1a/i-0123 and gce://project/zone/name: the machine comes last."""
    return provider_id.rpartition("/")[2]
