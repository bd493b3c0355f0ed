"""Kubernetes implementation of the Cluster port: dev servers are pods.

It acts and reports; the planner has decided who gets what. Observations come from the cache only; a cache that is too
old raises Unavailable. What must be certain (that an object is gone, which reservation owns it) is read from the API
server. One lock per reservation keeps launch and teardown apart.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

import structlog

from gpudev.adapters.change_signal import ChangeSignal
from gpudev.adapters.kubernetes.cache.cluster_cache import ClusterCache
from gpudev.adapters.kubernetes.cache.object_records import NodeRecord, PodRecord, ServerParts
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, connect_api
from gpudev.adapters.kubernetes.objects.compute_resources import (
    catalogue_resources,
    compute_share,
    grant_whole_node_resources,
)
from gpudev.adapters.kubernetes.objects.labels import home_volume_name
from gpudev.adapters.kubernetes.objects.pod_manifest import (
    DEV_CONTAINER,
    DEVSERVER_BINARY,
    MemberPlacement,
    StorageClaims,
)
from gpudev.adapters.kubernetes.observation.home_contents import find_home_contents
from gpudev.adapters.kubernetes.observation.node_state import (
    NodeStates,
    compute_node_state,
    find_gpu_type,
    gpu_types_by_instance,
    sum_daemon_requests,
)
from gpudev.adapters.kubernetes.observation.pod_failures import (
    find_pod_failure,
    find_rejecting_component,
    find_rejection_reason,
    placement_rejections,
)
from gpudev.adapters.kubernetes.observation.pod_reports import CrashLogs, PodPersonalizationReports
from gpudev.adapters.kubernetes.observation.server_state import ServerObservation, compute_server_state
from gpudev.adapters.kubernetes.provisioning.addons import AddonUpdater
from gpudev.adapters.kubernetes.provisioning.gang_hosts import GangHostsPublisher
from gpudev.adapters.kubernetes.provisioning.namespace_setup import NamespaceSetup
from gpudev.adapters.kubernetes.provisioning.server_objects import (
    DesiredServer,
    ServerProvisioner,
    delete_server_objects,
    delete_server_pods,
)
from gpudev.domain.cluster import SLOTS_PER_CPU_NODE, Catalogue, GpuType, Node, NodeShare
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import ClusterError, GpuDevError
from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.addons import JupyterSpec, JupyterStatus
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterState, ServerPhase, ServerSpec, ServerState
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)

_FIRST_LIST_TIMEOUT = timedelta(seconds=30)
_MESSAGE_TIMEOUT = timedelta(seconds=5)


class KubernetesCluster:
    isolation = (
        "Each dev server is a pod of its own: own files, processes, network and GPUs, no permissions in the cluster, "
        "and no connection to other dev servers or the control plane where the network enforces NetworkPolicies."
    )

    def __init__(
        self,
        settings: KubernetesSettings,
        catalogue: Catalogue,
        clock: Clock,
        *,
        api: KubernetesApi | None = None,
        starts_servers: bool = True,
    ) -> None:
        """`starts_servers` False: it only tears down expired ones. It creates none of their prerequisites and fetches
        no crash logs: it does not report failures that happened while no processor ran."""
        self._settings = settings
        self._starts_servers = starts_servers
        self._catalogue = catalogue
        self._clock = clock
        self._api = api or connect_api(settings)
        self._cache = ClusterCache(self._api, settings, clock)
        self._state = IncrementalState(self._cache, catalogue, settings)
        self._namespace_setup = NamespaceSetup(self._api, settings)
        self._provisioner = ServerProvisioner(self._api, settings, self._cache.record_write_response)
        self._addon_updater = AddonUpdater(self._api)
        self._changes = ChangeSignal()
        self._crash_logs = CrashLogs(self._api, self._changes.notify)
        self._gang_hosts = GangHostsPublisher(self._api)
        self._personalization_reports = PodPersonalizationReports(self._api, self._changes.notify)
        self._locks: WeakValueDictionary[ReservationId, asyncio.Lock] = WeakValueDictionary()
        self._provisioning: set[ReservationId] = set()
        self._ended_before_start: frozenset[str] = frozenset()
        """Pods that had ended before our first observation: as far as we know, no processor ran."""
        self._watching_since: datetime | None = None
        self._confirmed_gone: set[str] = set()
        """Uids of objects that the API server no longer has and the cache still has."""
        self._counted_rejections: set[str] = set()
        self._forwarding: asyncio.Task[None] | None = None

    @property
    def cache(self) -> ClusterCache:
        return self._cache

    async def start(self) -> None:
        self._watching_since = self._clock.now()
        try:
            if self._starts_servers:
                await self._namespace_setup.start()
            self._cache.start()
            await self._cache.wait_until_listed(_FIRST_LIST_TIMEOUT)
        except BaseException:
            await self.close()
            raise
        parts = [self._cache.get_server_parts(reservation_id) for reservation_id in self._cache.reservation_ids()]
        self._ended_before_start = frozenset(pod.uid for server in parts for pod in server.pods if pod.is_over)
        self._forwarding = asyncio.create_task(self._forward_changes(), name="cluster changes")

    async def close(self) -> None:
        if self._forwarding is not None:
            self._forwarding.cancel()
            await asyncio.gather(self._forwarding, return_exceptions=True)
        await self._namespace_setup.close()
        await self._crash_logs.close()
        await self._gang_hosts.close()
        await self._personalization_reports.close()
        await self._cache.close()
        self._changes.close()
        await self._api.close()

    async def observe(self) -> ClusterState:
        at, now = self._cache.check_fresh(), self._clock.now()
        nodes = self._state.compute_nodes()
        servers: dict[ReservationId, ServerState] = {}
        present: set[str] = set()
        for reservation_id in self._cache.reservation_ids():
            parts = self._cache.get_server_parts(reservation_id)
            present |= _uids(parts)
            state = self._server_state(parts, now)
            if len(parts.pods) > 1 and self._starts_servers:
                self._gang_hosts.publish_if_changed(parts)
            if state is not None:
                servers[reservation_id] = state
        self._confirmed_gone &= present
        self._counted_rejections &= present
        self._crash_logs.retain_only(present)
        self._personalization_reports.retain_only(present)
        return ClusterState(at, nodes.nodes, servers)

    def changes(self) -> AsyncIterator[None]:
        return self._changes.subscribe()

    async def ensure_server(self, spec: ServerSpec) -> None:
        rid = spec.reservation_id
        async with self._lock(rid), self._namespace_setup.guard_launch():
            await self._release_rejected_placement(rid)
            desired = DesiredServer(
                spec,
                [self._choose_placement(spec, share) for share in spec.shares],
                await self._ensure_storage_claims(spec),
            )
            desired = replace(desired, failed_pods=frozenset(pod.uid for pod in self._failed_pods(rid)))
            self._provisioning.add(rid)
            try:
                await self._provisioner.ensure_objects(desired)
            finally:
                self._provisioning.discard(rid)
                self._changes.notify()

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        """`keep_files` has no effect: volumes and shared storage are never removed here, and scratch space always ends
        with its pod."""
        async with self._lock(reservation_id):
            for pod in self._cache.get_server_parts(reservation_id).pods:
                self._count_rejection(pod, find_rejection_reason(pod))
            self._cache.expect_removal(reservation_id)
            self._gang_hosts.forget_reservation(reservation_id)
            is_gone = await delete_server_objects(self._api, reservation_id, has_disks=bool(self._settings.disk_driver))
            if is_gone:
                self._confirmed_gone |= _uids(self._cache.get_server_parts(reservation_id))
                self._changes.notify()
            return is_gone

    async def home_contents(self, reservation_id: ReservationId) -> Contents | None:
        return await find_home_contents(self._api, self._cache.get_server_parts(reservation_id))

    async def apply_addons(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterSpec | None
    ) -> JupyterStatus | None:
        """First the Secret, for a later restart; then the pods themselves, because they would read the Secret only
        after a minute."""
        async with self._lock(reservation_id):
            pods = [
                pod
                for pod in self._cache.get_server_parts(reservation_id).pods
                if not pod.has_ended and pod.node is not None
            ]
            return await self._addon_updater.apply_addons(reservation_id, pods, ssh_public_keys, jupyter)

    async def send_message(self, reservation_id: ReservationId, message: str) -> None:
        """Skips pods that have ended; a pod that does not answer only costs a log line."""
        pods = [
            pod
            for pod in self._cache.get_server_parts(reservation_id).pods
            if not pod.has_ended and pod.node is not None
        ]
        await asyncio.gather(*(self._send_to_pod(pod, message) for pod in pods))

    # Observation

    def _server_state(self, parts: ServerParts, now: datetime) -> ServerState | None:
        if self._confirmed_gone and self._confirmed_gone & _uids(parts):
            parts = _without_uids(parts, self._confirmed_gone)
        if not (parts.pods or parts.services or parts.volumes or parts.gone):
            return None
        observation = self._state.compute_server(parts, now)
        if observation.state.phase is ServerPhase.READY:
            return replace(observation.state, setup_outcome=self._personalization_reports.find_summary(parts))
        if observation.state.phase is not ServerPhase.DEAD:
            return observation.state
        if parts.reservation_id in self._provisioning:
            return _as_starting(observation.state, "launching")
        return self._dead_server_state(parts, observation)

    def _dead_server_state(self, parts: ServerParts, observation: ServerObservation) -> ServerState:
        if observation.state.command_exit is not None:
            return observation.state
        failed = self._failed_pods(parts.reservation_id)
        rejected = [pod for pod in failed if find_rejecting_component(pod) is not None]
        for pod in rejected:
            self._count_rejection(pod, observation.state.reason)
        unwatched = not parts.gone and all(self._died_unwatched(pod) for pod in failed)
        if rejected or unwatched or observation.state.is_restartable:
            return replace(observation.state, is_restartable=True)
        return self._with_crash_log(observation)

    def _died_unwatched(self, pod: PodRecord) -> bool:
        """It had ended at our first observation, or before it and its kubelet reported late. Kubelets report whole
        seconds, so an end within the second of our start counts as watched."""
        if pod.uid in self._ended_before_start or self._watching_since is None:
            return pod.uid in self._ended_before_start
        ends = [
            container.termination.finished_at
            for container in (pod.member.containers if pod.member else ())
            if container.termination and container.termination.finished_at
        ]
        return pod.is_over and bool(ends) and max(ends) < self._watching_since.replace(microsecond=0)

    def _with_crash_log(self, observation: ServerObservation) -> ServerState:
        """A failure is recorded once, so it waits for the crash log, which comes within seconds or not at all."""
        state, source = observation.state, observation.log_source
        if source is None or not self._starts_servers:
            return state
        crash_log = self._crash_logs.find_crash_log(source.uid, source.pod, source.container)
        if crash_log is None:
            return _as_starting(state, "ended; reading its last log lines")
        return replace(state, reason=f"{state.reason}\nIts last log lines:\n{crash_log}") if crash_log else state

    def _failed_pods(self, reservation_id: ReservationId) -> list[PodRecord]:
        now, nodes = self._clock.now(), self._cache.nodes
        return [
            pod
            for pod in self._cache.get_server_parts(reservation_id).pods
            if pod.member is not None
            and find_pod_failure(pod, pod.member, nodes.get(pod.node or ""), now, self._settings) is not None
        ]

    def _count_rejection(self, pod: PodRecord, reason: str | None) -> None:
        component = find_rejecting_component(pod)
        if component is not None and pod.uid not in self._counted_rejections and pod.member is not None:
            self._counted_rejections.add(pod.uid)
            placement_rejections.labels(component).inc()
            rid = str(pod.member.reservation_id)
            log.warning("placement.rejected", reservation_id=rid, pod=pod.name, component=component, reason=reason)

    async def _forward_changes(self) -> None:
        async for _ in self._cache.changes():
            self._changes.notify()

    # Launch and messages

    async def _release_rejected_placement(self, reservation_id: ReservationId) -> None:
        """Remove all members of a rejected placement: half a gang must not hold what it cannot use. The caller counts
        the attempt and tries again."""
        rejected = [pod for pod in self._failed_pods(reservation_id) if find_rejecting_component(pod) is not None]
        if not rejected:
            return
        reason = compute_server_state(
            self._cache.get_server_parts(reservation_id), self._cache.nodes, self._clock.now(), self._settings
        ).state.reason
        self._cache.expect_removal(reservation_id)
        await delete_server_pods(self._api, reservation_id)
        raise ClusterError(f"the cluster rejected the placement: {reason}")

    def _choose_placement(self, spec: ServerSpec, share: NodeShare) -> MemberPlacement:
        """Its part of the node's resources: from the node's report, else from the catalogue."""
        node, gpu_type = self._cache.nodes.get(share.node), self._catalogue.get(spec.gpu_type)
        available = (node.allocatable if node is not None else None) or (
            catalogue_resources(gpu_type) if gpu_type else None
        )
        if available is None:
            raise ClusterError(f"no node named {share.node!r} and no GPU type named {spec.gpu_type!r}")
        gpus = (node.gpus if node is not None else 0) or (gpu_type.max_gpus if gpu_type else 0)
        units = gpus if spec.gpu_count else SLOTS_PER_CPU_NODE
        whole_node_resources = (
            grant_whole_node_resources(node.whole_node_resources, share.units, node.gpus)
            if node is not None and spec.gpu_count
            else ()
        )
        daemon_requests = sum_daemon_requests(self._cache.pods_on(share.node))
        resources = compute_share(available, share.units, max(units, share.units), daemon_requests)
        return MemberPlacement(share, resources, whole_node_resources)

    async def _ensure_storage_claims(self, spec: ServerSpec) -> StorageClaims:
        if spec.disk_id is not None and spec.volume is None:
            # Never launch with scratch space in place of a person's disk.
            raise ClusterError(f"the disk {spec.disk_name!r} cannot be attached: it has no volume")
        home = home_volume_name(spec.pod_name) if spec.volume is not None else None
        return StorageClaims(home, await self._provisioner.ensure_shared_claim(spec.username))

    async def _send_to_pod(self, pod: PodRecord, message: str) -> None:
        try:
            await self._api.exec_in_pod(
                pod.name, DEV_CONTAINER, [DEVSERVER_BINARY, "tell"], message.encode(), timeout=_MESSAGE_TIMEOUT
            )
        except GpuDevError as error:
            log.info("terminal_message.failed", pod=pod.name, error=str(error))

    def _lock(self, reservation_id: ReservationId) -> asyncio.Lock:
        return self._locks.setdefault(reservation_id, asyncio.Lock())


def _as_starting(state: ServerState, step: str) -> ServerState:
    return replace(state, phase=ServerPhase.STARTING, step=step, reason=None, is_restartable=False, rejection=None)


def _uids(parts: ServerParts) -> set[str]:
    return {record.uid for records in (parts.pods, parts.services, parts.volumes) for record in records}


def _without_uids(parts: ServerParts, uids: set[str]) -> ServerParts:
    return replace(
        parts,
        pods=tuple(pod for pod in parts.pods if pod.uid not in uids),
        services=tuple(service for service in parts.services if service.uid not in uids),
        volumes=tuple(volume for volume in parts.volumes if volume.uid not in uids),
    )


# States of nodes and servers, computed again only where records have changed.
#
# With thousands of dev servers nearly all are unchanged since the last observation. `node_state` and `server_state`
# compute the states; this adds nothing to them.


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
