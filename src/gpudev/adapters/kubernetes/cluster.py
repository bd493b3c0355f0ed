"""Kubernetes as the cluster: dev servers are pods. It carries out and reports; who gets what was decided before.

Looks come from a mirror, and from no other place: a mirror that is too old refuses. What has to be certain (that
something is gone, whose an object is) is asked of the API server itself. One lock per reservation keeps its start and
its end apart.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

import structlog

from gpudev.adapters.change_signal import ChangeSignal
from gpudev.adapters.kubernetes.cache.cluster_cache import ClusterCache
from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServerParts
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
from gpudev.adapters.kubernetes.observation.incremental_state import IncrementalState
from gpudev.adapters.kubernetes.observation.node_state import sum_daemon_requests
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
from gpudev.domain.cluster import SLOTS_PER_CPU_NODE, Catalogue, NodeShare
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
        "Each dev server is a pod of its own: own files, processes, network and GPUs, no rights in the cluster, "
        "and no way to other dev servers or the control plane where the network keeps NetworkPolicies."
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
        """`starts_servers` False: it only ends them, by their time. It makes nothing that they would need, and asks
        for no last words: whose death nobody watched is not told by it."""
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
        """Pods that had ended before our first look: nobody watched, as far as we can know."""
        self._watching_since: datetime | None = None
        self._confirmed_gone: set[str] = set()
        """What the API server no longer has and the mirror still shows."""
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
        self._ended_before_start = frozenset(pod.uid for one in parts for pod in one.pods if pod.is_over)
        self._forwarding = asyncio.create_task(self._forward_changes(), name="changes of the cluster")

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
            seen = self._server_state(parts, now)
            if len(parts.pods) > 1 and self._starts_servers:
                self._gang_hosts.publish_if_changed(parts)
            if seen is not None:
                servers[reservation_id] = seen
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
            order = DesiredServer(
                spec,
                [self._choose_placement(spec, share) for share in spec.shares],
                await self._ensure_storage_claims(spec),
            )
            order = replace(order, failed_pods=frozenset(pod.uid for pod in self._failed_pods(rid)))
            self._provisioning.add(rid)
            try:
                await self._provisioner.ensure_objects(order)
            finally:
                self._provisioning.discard(rid)
                self._changes.notify()

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        """`keep_files` changes nothing: volumes and shared storage are never removed here, and scratch space cannot
        outlive its pod."""
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
        """The Secret first, for whoever starts it anew; then the pods themselves, which would learn of that only
        after a minute."""
        async with self._lock(reservation_id):
            pods = [
                pod
                for pod in self._cache.get_server_parts(reservation_id).pods
                if not pod.has_ended and pod.node is not None
            ]
            return await self._addon_updater.apply_addons(reservation_id, pods, ssh_public_keys, jupyter)

    async def send_message(self, reservation_id: ReservationId, message: str) -> None:
        """Whoever is gone need not be told, and nothing waits for one that does not listen."""
        pods = [
            pod
            for pod in self._cache.get_server_parts(reservation_id).pods
            if not pod.has_ended and pod.node is not None
        ]
        await asyncio.gather(*(self._send_to_pod(pod, message) for pod in pods))

    # What is seen

    def _server_state(self, parts: ServerParts, now: datetime) -> ServerState | None:
        if self._confirmed_gone and self._confirmed_gone & _uids(parts):
            parts = _without_uids(parts, self._confirmed_gone)
        if not (parts.pods or parts.services or parts.volumes or parts.gone):
            return None
        facts = self._state.compute_server(parts, now)
        if facts.state.phase is ServerPhase.READY:
            return replace(facts.state, setup_outcome=self._personalization_reports.find_summary(parts))
        if facts.state.phase is not ServerPhase.DEAD:
            return facts.state
        if parts.reservation_id in self._provisioning:
            return _as_starting(facts.state, "being started")
        return self._dead_server_state(parts, facts)

    def _dead_server_state(self, parts: ServerParts, facts: ServerObservation) -> ServerState:
        if facts.state.command_exit is not None:
            return facts.state
        dead = self._failed_pods(parts.reservation_id)
        refused = [pod for pod in dead if find_rejecting_component(pod) is not None]
        for pod in refused:
            self._count_rejection(pod, facts.state.reason)
        unwatched = not parts.gone and all(self._died_unwatched(pod) for pod in dead)
        if refused or unwatched or facts.state.is_restartable:
            return replace(facts.state, is_restartable=True)
        return self._with_crash_log(parts, facts)

    def _died_unwatched(self, pod: PodRecord) -> bool:
        """It had ended when we first looked, or did so before and its kubelet told us late. Kubelets tell whole
        seconds: within the one in which we began, somebody watched."""
        if pod.uid in self._ended_before_start or self._watching_since is None:
            return pod.uid in self._ended_before_start
        ends = [
            one.termination.finished_at
            for one in (pod.member.containers if pod.member else ())
            if one.termination and one.termination.finished_at
        ]
        return pod.is_over and bool(ends) and max(ends) < self._watching_since.replace(microsecond=0)

    def _with_crash_log(self, parts: ServerParts, facts: ServerObservation) -> ServerState:
        """A death is told once, so it is told with its last words; they come within seconds or not at all."""
        source = facts.log_source
        uid = next((pod.uid for pod in parts.pods if source is not None and pod.name == source.pod), None)
        if source is None or uid is None or not self._starts_servers:
            return facts.state
        words = self._crash_logs.find_crash_log(uid, source.pod, source.container)
        if words is None:
            return _as_starting(facts.state, "it has ended; reading its last log lines")
        return (
            replace(facts.state, reason=f"{facts.state.reason}\nIts last log lines:\n{words}") if words else facts.state
        )

    def _failed_pods(self, reservation_id: ReservationId) -> list[PodRecord]:
        now, nodes = self._clock.now(), self._cache.nodes
        return [
            pod
            for pod in self._cache.get_server_parts(reservation_id).pods
            if pod.member is not None
            and find_pod_failure(pod, pod.member, nodes.get(pod.node or ""), now, self._settings) is not None
        ]

    def _count_rejection(self, pod: PodRecord, reason: str | None) -> None:
        who = find_rejecting_component(pod)
        if who is not None and pod.uid not in self._counted_rejections and pod.member is not None:
            self._counted_rejections.add(pod.uid)
            placement_rejections.labels(who).inc()
            rid = str(pod.member.reservation_id)
            log.warning("kubernetes.plan_refused", reservation_id=rid, pod=pod.name, who=who, reason=reason)

    async def _forward_changes(self) -> None:
        async for _ in self._cache.changes():
            self._changes.notify()

    # What is done

    async def _release_rejected_placement(self, reservation_id: ReservationId) -> None:
        """A place that was refused is left by all members: half a gang must not hold what it cannot use. Whoever asked
        counts the attempt, and asks again."""
        refused = [pod for pod in self._failed_pods(reservation_id) if find_rejecting_component(pod) is not None]
        if not refused:
            return
        reasons = compute_server_state(
            self._cache.get_server_parts(reservation_id), self._cache.nodes, self._clock.now(), self._settings
        ).state.reason
        self._cache.expect_removal(reservation_id)
        await delete_server_pods(self._api, reservation_id)
        raise ClusterError(f"plan and cluster disagree: {reasons}")

    def _choose_placement(self, spec: ServerSpec, share: NodeShare) -> MemberPlacement:
        """Its part of the node as the node describes itself, else of what the catalogue says."""
        node, gpu_type = self._cache.nodes.get(share.node), self._catalogue.get(spec.gpu_type)
        room = (node.allocatable if node is not None else None) or (catalogue_resources(gpu_type) if gpu_type else None)
        if room is None:
            raise ClusterError(f"nothing is known of the node {share.node} and the GPU type {spec.gpu_type}")
        gpus = (node.gpus if node is not None else 0) or (gpu_type.max_gpus if gpu_type else 0)
        units = gpus if spec.gpu_count else SLOTS_PER_CPU_NODE
        rest = (
            grant_whole_node_resources(node.whole_node_resources, share.units, node.gpus)
            if node is not None and spec.gpu_count
            else ()
        )
        staying = sum_daemon_requests(self._cache.pods_on(share.node))
        return MemberPlacement(share, compute_share(room, share.units, max(units, share.units), staying), rest)

    async def _ensure_storage_claims(self, spec: ServerSpec) -> StorageClaims:
        if spec.disk_id is not None and spec.volume is None:
            # Never scratch space in place of somebody's disk.
            raise ClusterError(f"the disk {spec.disk_name!r} cannot be attached: no volume was made ready for it")
        home = home_volume_name(spec.pod_name) if spec.volume is not None else None
        return StorageClaims(home, await self._provisioner.ensure_shared_claim(spec.username))

    async def _send_to_pod(self, pod: PodRecord, message: str) -> None:
        try:
            await self._api.exec_in_pod(
                pod.name, DEV_CONTAINER, [DEVSERVER_BINARY, "tell"], message.encode(), timeout=_MESSAGE_TIMEOUT
            )
        except GpuDevError as error:
            log.info("kubernetes.not_told", pod=pod.name, error=str(error))

    def _lock(self, reservation_id: ReservationId) -> asyncio.Lock:
        return self._locks.setdefault(reservation_id, asyncio.Lock())


def _as_starting(state: ServerState, step: str) -> ServerState:
    return replace(state, phase=ServerPhase.STARTING, step=step, reason=None, is_restartable=False, rejection=None)


def _uids(parts: ServerParts) -> set[str]:
    return {one.uid for some in (parts.pods, parts.services, parts.volumes) for one in some}


def _without_uids(parts: ServerParts, uids: set[str]) -> ServerParts:
    return replace(
        parts,
        pods=tuple(pod for pod in parts.pods if pod.uid not in uids),
        services=tuple(service for service in parts.services if service.uid not in uids),
        volumes=tuple(volume for volume in parts.volumes if volume.uid not in uids),
    )
