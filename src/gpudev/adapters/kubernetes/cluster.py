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

from gpudev.adapters.change_signal import Changes
from gpudev.adapters.kubernetes.cache.cluster_cache import Mirror
from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServerParts
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, connect
from gpudev.adapters.kubernetes.ending import end_all, end_pods
from gpudev.adapters.kubernetes.last_words import LastWords
from gpudev.adapters.kubernetes.objects.labels import home_name
from gpudev.adapters.kubernetes.objects.pod_manifest import BINARY, CONTAINER, Place, Storage
from gpudev.adapters.kubernetes.observation.home_contents import list_home
from gpudev.adapters.kubernetes.observation.incremental_state import Seeing
from gpudev.adapters.kubernetes.observation.node_state import staying_on
from gpudev.adapters.kubernetes.observation.pod_failures import find_death
from gpudev.adapters.kubernetes.observation.pod_reports import SetupReports
from gpudev.adapters.kubernetes.observation.server_state import ServerFacts, see_server
from gpudev.adapters.kubernetes.provisioning.addons import Furnisher
from gpudev.adapters.kubernetes.provisioning.gang_hosts import GangHosts
from gpudev.adapters.kubernetes.provisioning.namespace_setup import Grounds
from gpudev.adapters.kubernetes.provisioning.server_objects import Maker, Order
from gpudev.adapters.kubernetes.refusals import find_refusal, plan_refusals, why_refused
from gpudev.adapters.kubernetes.sizing import all_of_node, room_of_type, share_of
from gpudev.domain.cluster import Share
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import ClusterError, GpuDevError
from gpudev.domain.gpu import SLOTS_PER_CPU_NODE, Catalogue
from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.addons import JupyterSeen, JupyterWish
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterSeen, Phase, ServerSeen, ServerSpec
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)

_FIRST_LOOK_WITHIN = timedelta(seconds=30)
_TELL_WITHIN = timedelta(seconds=5)


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
        self._api = api or connect(settings)
        self._mirror = Mirror(self._api, settings, clock)
        self._seeing = Seeing(self._mirror, catalogue, settings)
        self._grounds = Grounds(self._api, settings)
        self._maker = Maker(self._api, settings, self._mirror.saw)
        self._furnisher = Furnisher(self._api)
        self._changes = Changes()
        self._last_words = LastWords(self._api, self._changes.tell)
        self._gang_hosts = GangHosts(self._api)
        self._setup_reports = SetupReports(self._api, self._changes.tell)
        self._locks: WeakValueDictionary[ReservationId, asyncio.Lock] = WeakValueDictionary()
        self._being_made: set[ReservationId] = set()
        self._found_dead: frozenset[str] = frozenset()
        """Pods that had ended before our first look: nobody watched, as far as we can know."""
        self._watching_since: datetime | None = None
        self._confirmed_gone: set[str] = set()
        """What the API server no longer has and the mirror still shows."""
        self._counted: set[str] = set()
        self._passing_on: asyncio.Task[None] | None = None

    @property
    def mirror(self) -> Mirror:
        return self._mirror

    async def start(self) -> None:
        self._watching_since = self._clock.now()
        try:
            if self._starts_servers:
                await self._grounds.prepare()
            self._mirror.start()
            await self._mirror.wait_complete(_FIRST_LOOK_WITHIN)
        except BaseException:
            await self.close()
            raise
        parts = [self._mirror.parts_of(reservation_id) for reservation_id in self._mirror.reservations()]
        self._found_dead = frozenset(pod.uid for one in parts for pod in one.pods if pod.is_over)
        self._passing_on = asyncio.create_task(self._pass_changes_on(), name="changes of the cluster")

    async def close(self) -> None:
        if self._passing_on is not None:
            self._passing_on.cancel()
            await asyncio.gather(self._passing_on, return_exceptions=True)
        await self._grounds.close()
        await self._last_words.close()
        await self._gang_hosts.close()
        await self._setup_reports.close()
        await self._mirror.close()
        self._changes.close()
        await self._api.close()

    async def look(self) -> ClusterSeen:
        at, now = self._mirror.check_fresh(), self._clock.now()
        nodes = self._seeing.nodes()
        servers: dict[ReservationId, ServerSeen] = {}
        present: set[str] = set()
        for reservation_id in self._mirror.reservations():
            parts = self._mirror.parts_of(reservation_id)
            present |= _uids(parts)
            seen = self._see(parts, now)
            if len(parts.pods) > 1 and self._starts_servers:
                self._gang_hosts.consider(parts)
            if seen is not None:
                servers[reservation_id] = seen
        self._confirmed_gone &= present
        self._counted &= present
        self._last_words.forget_all_but(present)
        self._setup_reports.forget_all_but(present)
        return ClusterSeen(at, nodes.nodes, servers)

    def changes(self) -> AsyncIterator[None]:
        return self._changes.subscribe()

    async def ensure_server(self, spec: ServerSpec) -> None:
        rid = spec.reservation_id
        async with self._lock(rid), self._grounds.relied_on():
            await self._give_way(rid)
            order = Order(spec, [self._place(spec, share) for share in spec.shares], await self._storage(spec))
            order = replace(order, condemned=frozenset(pod.uid for pod in self._dead_pods(rid)))
            self._being_made.add(rid)
            try:
                await self._maker.make(order)
            finally:
                self._being_made.discard(rid)
                self._changes.tell()

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        """`keep_files` changes nothing: volumes and shared storage are never removed here, and scratch space cannot
        outlive its pod."""
        async with self._lock(reservation_id):
            for pod in self._mirror.parts_of(reservation_id).pods:
                self._count_refusal(pod, why_refused(pod))
            self._mirror.let_go(reservation_id)
            self._gang_hosts.forget(reservation_id)
            is_gone = await end_all(self._api, reservation_id, has_disks=bool(self._settings.disk_driver))
            if is_gone:
                self._confirmed_gone |= _uids(self._mirror.parts_of(reservation_id))
                self._changes.tell()
            return is_gone

    async def home_contents(self, reservation_id: ReservationId) -> Contents | None:
        return await list_home(self._api, self._mirror.parts_of(reservation_id))

    async def adjust(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterWish | None
    ) -> JupyterSeen | None:
        """The Secret first, for whoever starts it anew; then the pods themselves, which would learn of that only
        after a minute."""
        async with self._lock(reservation_id):
            pods = [pod for pod in self._mirror.parts_of(reservation_id).pods if not pod.ended and pod.node is not None]
            return await self._furnisher.adjust(reservation_id, pods, ssh_public_keys, jupyter)

    async def tell(self, reservation_id: ReservationId, message: str) -> None:
        """Whoever is gone need not be told, and nothing waits for one that does not listen."""
        pods = [pod for pod in self._mirror.parts_of(reservation_id).pods if not pod.ended and pod.node is not None]
        await asyncio.gather(*(self._tell(pod, message) for pod in pods))

    # What is seen

    def _see(self, parts: ServerParts, now: datetime) -> ServerSeen | None:
        if self._confirmed_gone and self._confirmed_gone & _uids(parts):
            parts = _without(parts, self._confirmed_gone)
        if not (parts.pods or parts.services or parts.volumes or parts.gone):
            return None
        facts = self._seeing.server(parts, now)
        if facts.seen.phase is Phase.READY:
            return replace(facts.seen, setup=self._setup_reports.find(parts))
        if facts.seen.phase is not Phase.DEAD:
            return facts.seen
        if parts.reservation_id in self._being_made:
            return _starting(facts.seen, "being started")
        return self._see_dead(parts, facts)

    def _see_dead(self, parts: ServerParts, facts: ServerFacts) -> ServerSeen:
        if facts.seen.run_end is not None:
            return facts.seen
        dead = self._dead_pods(parts.reservation_id)
        refused = [pod for pod in dead if find_refusal(pod) is not None]
        for pod in refused:
            self._count_refusal(pod, facts.seen.reason)
        unwatched = not parts.gone and all(self._died_unwatched(pod) for pod in dead)
        if refused or unwatched or facts.seen.lost_unwatched:
            return replace(facts.seen, lost_unwatched=True)
        return self._with_last_words(parts, facts)

    def _died_unwatched(self, pod: PodRecord) -> bool:
        """It had ended when we first looked, or did so before and its kubelet told us late. Kubelets tell whole
        seconds: within the one in which we began, somebody watched."""
        if pod.uid in self._found_dead or self._watching_since is None:
            return pod.uid in self._found_dead
        ends = [one.ended.at for one in (pod.own.containers if pod.own else ()) if one.ended and one.ended.at]
        return pod.is_over and bool(ends) and max(ends) < self._watching_since.replace(microsecond=0)

    def _with_last_words(self, parts: ServerParts, facts: ServerFacts) -> ServerSeen:
        """A death is told once, so it is told with its last words; they come within seconds or not at all."""
        source = facts.logs
        uid = next((pod.uid for pod in parts.pods if source is not None and pod.name == source.pod), None)
        if source is None or uid is None or not self._starts_servers:
            return facts.seen
        words = self._last_words.find(uid, source.pod, source.container)
        if words is None:
            return _starting(facts.seen, "it has ended; reading its last log lines")
        return replace(facts.seen, reason=f"{facts.seen.reason}\nIts last log lines:\n{words}") if words else facts.seen

    def _dead_pods(self, reservation_id: ReservationId) -> list[PodRecord]:
        now, nodes = self._clock.now(), self._mirror.nodes
        return [
            pod
            for pod in self._mirror.parts_of(reservation_id).pods
            if pod.own is not None
            and find_death(pod, pod.own, nodes.get(pod.node or ""), now, self._settings) is not None
        ]

    def _count_refusal(self, pod: PodRecord, reason: str | None) -> None:
        who = find_refusal(pod)
        if who is not None and pod.uid not in self._counted and pod.own is not None:
            self._counted.add(pod.uid)
            plan_refusals.labels(who).inc()
            rid = str(pod.own.reservation_id)
            log.warning("kubernetes.plan_refused", reservation_id=rid, pod=pod.name, who=who, reason=reason)

    async def _pass_changes_on(self) -> None:
        async for _ in self._mirror.changes():
            self._changes.tell()

    # What is done

    async def _give_way(self, reservation_id: ReservationId) -> None:
        """A place that was refused is left by all members: half a gang must not hold what it cannot use. Whoever asked
        counts the attempt, and asks again."""
        refused = [pod for pod in self._dead_pods(reservation_id) if find_refusal(pod) is not None]
        if not refused:
            return
        reasons = see_server(
            self._mirror.parts_of(reservation_id), self._mirror.nodes, self._clock.now(), self._settings
        ).seen.reason
        self._mirror.let_go(reservation_id)
        await end_pods(self._api, reservation_id)
        raise ClusterError(f"plan and cluster disagree: {reasons}")

    def _place(self, spec: ServerSpec, share: Share) -> Place:
        """Its part of the node as the node describes itself, else of what the catalogue says."""
        node, gpu_type = self._mirror.nodes.get(share.node), self._catalogue.get(spec.gpu_type)
        room = (node.room if node is not None else None) or (room_of_type(gpu_type) if gpu_type else None)
        if room is None:
            raise ClusterError(f"nothing is known of the node {share.node} and the GPU type {spec.gpu_type}")
        gpus = (node.gpus if node is not None else 0) or (gpu_type.max_gpus if gpu_type else 0)
        units = gpus if spec.gpu_count else SLOTS_PER_CPU_NODE
        rest = all_of_node(node.whole_only, share.units, node.gpus) if node is not None and spec.gpu_count else ()
        staying = staying_on(self._mirror.pods_on(share.node))
        return Place(share, share_of(room, share.units, max(units, share.units), staying), rest)

    async def _storage(self, spec: ServerSpec) -> Storage:
        if spec.disk_id is not None and spec.volume is None:
            # Never scratch space in place of somebody's disk.
            raise ClusterError(f"the disk {spec.disk_name!r} cannot be attached: no volume was made ready for it")
        home = home_name(spec.pod_name) if spec.volume is not None else None
        return Storage(home, await self._maker.ensure_shared_claim(spec.username))

    async def _tell(self, pod: PodRecord, message: str) -> None:
        try:
            await self._api.exec_in_pod(pod.name, CONTAINER, [BINARY, "tell"], message.encode(), timeout=_TELL_WITHIN)
        except GpuDevError as error:
            log.info("kubernetes.not_told", pod=pod.name, error=str(error))

    def _lock(self, reservation_id: ReservationId) -> asyncio.Lock:
        return self._locks.setdefault(reservation_id, asyncio.Lock())


def _starting(seen: ServerSeen, step: str) -> ServerSeen:
    return replace(seen, phase=Phase.STARTING, step=step, reason=None, lost_unwatched=False, refused=None)


def _uids(parts: ServerParts) -> set[str]:
    return {one.uid for some in (parts.pods, parts.services, parts.volumes) for one in some}


def _without(parts: ServerParts, uids: set[str]) -> ServerParts:
    return replace(
        parts,
        pods=tuple(pod for pod in parts.pods if pod.uid not in uids),
        services=tuple(service for service in parts.services if service.uid not in uids),
        volumes=tuple(volume for volume in parts.volumes if volume.uid not in uids),
    )
