"""One look at the cluster by whoever does not stay: nodes and pods are listed once and nothing is watched or written.

The facts are worked out as they are for the mirror, from the same trimmed records. Of each object only that is read
which they need, so that looking takes little longer than fetching.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpudev.adapters.kubernetes import shapes
from gpudev.adapters.kubernetes.cache.object_records import NodeRecord, PodRecord, ServerParts, trim_node, trim_pod
from gpudev.adapters.kubernetes.client.kubernetes_api import Expired, KubernetesApi, connect
from gpudev.adapters.kubernetes.client.rbac import EVERYWHERE, Right
from gpudev.adapters.kubernetes.client.resource_kinds import NODE, POD, Manifest
from gpudev.adapters.kubernetes.observation.node_state import see_nodes
from gpudev.adapters.kubernetes.observation.server_state import see_server
from gpudev.domain.gpu import Catalogue
from gpudev.domain.ids import ReservationId
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterSeen, ServerSeen
from gpudev.settings import KubernetesSettings

_T = TypeVar("_T")
_PAGE = 500
RIGHTS = tuple(Right(right.group, right.resources, ("list",)) for right in EVERYWHERE)
"""All that a look needs."""


class KubernetesReading:
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
        self._api = api or connect(settings)

    async def close(self) -> None:
        await self._api.close()

    async def look(self) -> ClusterSeen:
        """Complete, or it raises."""
        at = self._clock.now()
        catalogue = await self._catalogue()
        of_nodes = asyncio.ensure_future(self._again_if_expired(self._nodes))
        of_pods = asyncio.ensure_future(self._again_if_expired(self._pods))
        try:
            nodes, (by_node, own) = await asyncio.gather(of_nodes, of_pods)
        finally:  # where one of them fails, nobody waits for the other
            of_nodes.cancel()
            of_pods.cancel()
            await asyncio.wait({of_nodes, of_pods})
        seen = see_nodes(nodes.values(), lambda name: by_node.get(name, ()), catalogue, self._settings)
        return ClusterSeen(at, seen.nodes, self._servers(own, nodes))

    async def _nodes(self) -> dict[str, NodeRecord]:
        found: dict[str, NodeRecord] = {}
        async for page in self._api.pages(NODE, size=_PAGE, shape=shapes.Node):
            for item in page.items:
                node = trim_node(item, self._settings.gpu_type_label, self._settings.gpu_resource)
                found[node.name] = node
        return found

    async def _pods(self) -> tuple[dict[str, list[PodRecord]], dict[ReservationId, list[PodRecord]]]:
        """By node, and our own by reservation."""
        by_node: defaultdict[str, list[PodRecord]] = defaultdict(list)
        own: defaultdict[ReservationId, list[PodRecord]] = defaultdict(list)
        async for page in self._api.pages(POD, size=_PAGE, shape=shapes.Pod):
            for item in page.items:
                pod = self._trim_pod(item)
                if pod is None:
                    continue
                if pod.node is not None:
                    by_node[pod.node].append(pod)
                if pod.own is not None:
                    own[pod.own.reservation_id].append(pod)
        return by_node, own

    def _trim_pod(self, item: Manifest) -> PodRecord | None:
        return trim_pod(item, self._settings.namespace, self._settings.gpu_resource)

    def _servers(
        self, own: dict[ReservationId, list[PodRecord]], nodes: dict[str, NodeRecord]
    ) -> dict[ReservationId, ServerSeen]:
        now = self._clock.now()
        return {
            reservation_id: see_server(ServerParts(reservation_id, pods), nodes, now, self._settings).seen
            for reservation_id, pods in own.items()
        }

    async def _again_if_expired(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Between two pages the API server may forget what it listed; from the start it is as if not begun."""
        try:
            return await read()
        except Expired:
            return await read()
