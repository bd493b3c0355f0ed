"""States of nodes and servers, computed again only where records have changed.

With thousands of dev servers nearly all are unchanged since the last observation. `node_state` and `server_state`
compute the states; this adds nothing to them.
"""

from datetime import datetime

import structlog

from gpudev.adapters.kubernetes.cache.cluster_cache import ClusterCache
from gpudev.adapters.kubernetes.cache.object_records import NodeRecord, PodRecord, ServerParts
from gpudev.adapters.kubernetes.observation.node_gpu_types import find_gpu_type, gpu_types_by_instance
from gpudev.adapters.kubernetes.observation.node_state import NodeStates, compute_node_state
from gpudev.adapters.kubernetes.observation.server_state import ServerObservation, compute_server_state
from gpudev.domain.cluster import Catalogue, GpuType, Node
from gpudev.domain.ids import ReservationId
from gpudev.ports.cluster import ServerPhase
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)


class IncrementalState:
    def __init__(self, cache: ClusterCache, catalogue: Catalogue, settings: KubernetesSettings) -> None:
        self._cache = cache
        self._catalogue = catalogue
        self._types_by_instance = gpu_types_by_instance(catalogue)
        self._settings = settings
        self._nodes: dict[str, tuple[NodeRecord, tuple[PodRecord, ...], Node | str]] = {}
        self._servers: dict[ReservationId, tuple[ServerParts, tuple[NodeRecord | None, ...], ServerObservation]] = {}

    def compute_nodes(self) -> NodeStates:
        """Ordered by name. An ignored node is logged once."""
        records = self._cache.nodes
        self._drop_removed()
        nodes: list[Node] = []
        ignored: dict[str, str] = {}
        for name in sorted(records):
            found = self._compute_node(records[name])
            if isinstance(found, Node):
                nodes.append(found)
            else:
                ignored[name] = found
        return NodeStates(tuple(nodes), ignored)

    def compute_server(self, parts: ServerParts, now: datetime) -> ServerObservation:
        nodes = self._cache.nodes
        pod_nodes = tuple(nodes.get(pod.node) if pod.node is not None else None for pod in parts.pods)
        known = self._servers.get(parts.reservation_id)
        if known is not None and known[0] is parts and all(a is b for a, b in zip(known[1], pod_nodes, strict=True)):
            return known[2]
        observation = compute_server_state(parts, nodes, now, self._settings)
        if observation.state.phase is ServerPhase.READY:  # the state of all others also depends on the time
            self._servers[parts.reservation_id] = (parts, pod_nodes, observation)
        else:
            self._servers.pop(parts.reservation_id, None)
        return observation

    def _drop_removed(self) -> None:
        for name in self._nodes.keys() - self._cache.nodes.keys():
            del self._nodes[name]
        for reservation_id in self._servers.keys() - self._cache.reservation_ids():
            del self._servers[reservation_id]

    def _compute_node(self, record: NodeRecord) -> Node | str:
        pods = self._cache.pods_on(record.name)
        known = self._nodes.get(record.name)
        if known is not None and known[0] is record and known[1] is pods:
            return known[2]
        gpu_type = find_gpu_type(record, self._catalogue, self._types_by_instance, self._settings.gpu_type_label)
        found = (
            compute_node_state(record, gpu_type, pods, self._settings) if isinstance(gpu_type, GpuType) else gpu_type
        )
        if isinstance(found, str) and (known is None or known[2] != found):
            log_ignored = log.warning if record.gpus else log.info
            log_ignored("node.ignored", node=record.name, gpus=record.gpus, reason=found)
        if isinstance(found, Node):
            self._log_blocking_taints(record, None if known is None else known[0])
        self._nodes[record.name] = (record, pods, found)
        return found

    def _log_blocking_taints(self, record: NodeRecord, before: NodeRecord | None) -> None:
        """Only taints that a person set. Those of Kubernetes itself come and go with the node's state."""
        if before is not None and before.taints == record.taints:
            return
        taints = set(record.taints) - set(self._settings.tolerated_taints)
        chosen = sorted(key for key in taints if not key.partition("/")[0].endswith("kubernetes.io"))
        if chosen:
            log.warning("node.blocked_by_taint", node=record.name, taints=chosen, setting="GPU_DEV_TOLERATED_TAINTS")
