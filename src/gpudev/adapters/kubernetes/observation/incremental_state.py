"""The facts of a look, worked out again only for what has changed since the last: with thousands of dev servers nearly
all are as they were a moment ago. It adds nothing to the facts; `node_facts` and `server_facts` say what they are.
"""

from datetime import datetime

import structlog

from gpudev.adapters.kubernetes.cache.cluster_cache import Mirror
from gpudev.adapters.kubernetes.cache.object_records import NodeRecord, PodRecord, ServerParts
from gpudev.adapters.kubernetes.observation.node_gpu_types import find_type, types_by_instance
from gpudev.adapters.kubernetes.observation.node_state import NodesSeen, see_node
from gpudev.adapters.kubernetes.observation.server_state import ServerFacts, see_server
from gpudev.domain.cluster import Node
from gpudev.domain.gpu import Catalogue, GpuType
from gpudev.domain.ids import ReservationId
from gpudev.ports.cluster import Phase
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)


class Seeing:
    def __init__(self, mirror: Mirror, catalogue: Catalogue, settings: KubernetesSettings) -> None:
        self._mirror = mirror
        self._catalogue = catalogue
        self._by_instance = types_by_instance(catalogue)
        self._settings = settings
        self._nodes: dict[str, tuple[NodeRecord, tuple[PodRecord, ...], Node | str]] = {}
        self._servers: dict[ReservationId, tuple[ServerParts, tuple[NodeRecord | None, ...], ServerFacts]] = {}

    def nodes(self) -> NodesSeen:
        """In the order of their names. Of a node that is none of ours the log says so, once."""
        records = self._mirror.nodes
        self._forget_what_is_gone()
        seen: list[Node] = []
        ignored: dict[str, str] = {}
        for name in sorted(records):
            found = self._node(records[name])
            if isinstance(found, Node):
                seen.append(found)
            else:
                ignored[name] = found
        return NodesSeen(tuple(seen), ignored)

    def server(self, parts: ServerParts, now: datetime) -> ServerFacts:
        nodes = self._mirror.nodes
        where = tuple(nodes.get(pod.node) if pod.node is not None else None for pod in parts.pods)
        known = self._servers.get(parts.reservation_id)
        if known is not None and known[0] is parts and all(a is b for a, b in zip(known[1], where, strict=True)):
            return known[2]
        facts = see_server(parts, nodes, now, self._settings)
        if facts.seen.phase is Phase.READY:  # nothing else stays as it is while time passes
            self._servers[parts.reservation_id] = (parts, where, facts)
        else:
            self._servers.pop(parts.reservation_id, None)
        return facts

    def _forget_what_is_gone(self) -> None:
        for name in self._nodes.keys() - self._mirror.nodes.keys():
            del self._nodes[name]
        for reservation_id in self._servers.keys() - self._mirror.reservations():
            del self._servers[reservation_id]

    def _node(self, record: NodeRecord) -> Node | str:
        pods = self._mirror.pods_on(record.name)
        known = self._nodes.get(record.name)
        if known is not None and known[0] is record and known[1] is pods:
            return known[2]
        gpu_type = find_type(record, self._catalogue, self._by_instance, self._settings.gpu_type_label)
        found = see_node(record, gpu_type, pods, self._settings) if isinstance(gpu_type, GpuType) else gpu_type
        if isinstance(found, str) and (known is None or known[2] != found):
            say = log.warning if record.gpus else log.info
            say("kubernetes.node_ignored", node=record.name, gpus=record.gpus, reason=found)
        if isinstance(found, Node):
            self._say_what_closes(record, None if known is None else known[0])
        self._nodes[record.name] = (record, pods, found)
        return found

    def _say_what_closes(self, record: NodeRecord, before: NodeRecord | None) -> None:
        """Of taints that somebody chose. Those of Kubernetes itself come and go with the node's own state."""
        if before is not None and before.taints == record.taints:
            return
        taints = set(record.taints) - set(self._settings.tolerated_taints)
        chosen = sorted(key for key in taints if not key.partition("/")[0].endswith("kubernetes.io"))
        if chosen:
            log.warning("kubernetes.node_closed", node=record.name, taints=chosen, tolerate="GPU_DEV_TOLERATED_TAINTS")
