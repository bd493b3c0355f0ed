"""Cache of all nodes and pods, and of our services and persistent volumes.

List and watch keep it current. It knows when its records were current, and decides nothing. When the API server has
been silent for too long, reads raise Unavailable (`check_fresh`).

A pod of ours that disappears leaves a record (`GonePod`). Without it a lost node would look like a dev server that
never existed. A teardown is announced first (`expect_removal`); then its pods leave no record.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any

from gpudev.adapters.change_signal import ChangeSignal
from gpudev.adapters.kubernetes.cache.object_records import (
    GonePod,
    NodeRecord,
    PersistentVolumeRecord,
    PodRecord,
    ServerParts,
    ServiceRecord,
    to_node_record,
    to_persistent_volume_record,
    to_pod_record,
    to_service_record,
)
from gpudev.adapters.kubernetes.cache.reflector import Reflector, Store
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.client.resource_kinds import (
    NODE,
    PERSISTENT_VOLUME,
    POD,
    SERVICE,
    Manifest,
    ResourceKind,
    get_kind,
)
from gpudev.adapters.kubernetes.objects import labels
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.ports.clock import Clock
from gpudev.settings import KubernetesSettings

_LOST_POD_RETENTION = timedelta(minutes=10)


class ClusterCache:
    def __init__(self, api: KubernetesApi, settings: KubernetesSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._changes = ChangeSignal()
        self._nodes: dict[str, NodeRecord] = {}
        self._node_pods: dict[str, dict[str, PodRecord]] = {}
        self._server_pods: dict[ReservationId, dict[str, PodRecord]] = {}
        self._gone_pods: dict[ReservationId, dict[str, GonePod]] = {}
        self._services: dict[ReservationId, dict[str, ServiceRecord]] = {}
        self._volumes: dict[ReservationId, dict[str, PersistentVolumeRecord]] = {}
        self._parts: dict[ReservationId, ServerParts] = {}
        self._node_pod_tuples: dict[str, tuple[PodRecord, ...]] = {}
        """This and `_parts` are built on request and dropped on a change. A caller that gets the same object again
        knows that nothing has changed."""
        self._expected_removals: set[ReservationId] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._node_store = Store(
            lambda node: to_node_record(
                node, settings.gpu_type_label, settings.gpu_resource, settings.whole_node_resources
            ),
            self._node_changed,
        )
        self._pod_store = Store(
            lambda pod: to_pod_record(pod, settings.namespace, settings.gpu_resource), self._pod_changed
        )
        self._service_store = Store(to_service_record, self._service_changed)
        self._volume_store = Store(
            lambda volume: to_persistent_volume_record(volume, settings.namespace), self._volume_changed
        )
        managed = f"{labels.MANAGED_BY}={labels.MANAGER}"
        timing: dict[str, Any] = {"watch_timeout": settings.watch_timeout, "stale_after": settings.stale_after}
        volume_reflector = Reflector(api, PERSISTENT_VOLUME, self._volume_store, clock, selector=managed, **timing)
        self.reflectors: tuple[Reflector[Any], ...] = (
            Reflector(api, NODE, self._node_store, clock, **timing),
            Reflector(api, POD, self._pod_store, clock, on_deleted=self._record_gone_pod, **timing),
            Reflector(
                api,
                SERVICE,
                self._service_store,
                clock,
                namespace=settings.namespace,
                selector=managed,
                **timing,
            ),
            *([volume_reflector] if settings.disk_driver else []),
        )

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(reflector.run(), name=f"reflector of {reflector.kind.plural}")
            for reflector in self.reflectors
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._changes.close()

    async def wait_until_listed(self, timeout: timedelta) -> None:
        """Wait until every kind has been listed once. Raises Unavailable, with the reason, after `timeout`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                for reflector in self.reflectors:
                    await reflector.first_listed.wait()
        self.check_fresh()

    # Freshness

    def check_fresh(self) -> datetime:
        """When all records were last current. Raises Unavailable when that is too long ago."""
        now = self._clock.now()
        for reflector in self.reflectors:
            problem = f": {reflector.problem}" if reflector.problem else ""
            if reflector.fresh_at is None:
                raise Unavailable(f"the cluster's {reflector.kind.plural} have not been listed yet{problem}")
            age = now - reflector.fresh_at
            if age > self._settings.stale_after:
                seconds = f"{age.total_seconds():.0f} s"
                raise Unavailable(f"the cluster's {reflector.kind.plural} have not been updated for {seconds}{problem}")
        return min(reflector.fresh_at for reflector in self.reflectors if reflector.fresh_at is not None)

    def staleness(self) -> dict[str, float]:
        """Seconds since each kind was last known to be current; infinite before its first list."""
        now = self._clock.now()
        return {
            reflector.kind.plural: (now - reflector.fresh_at).total_seconds()
            if reflector.fresh_at is not None
            else math.inf
            for reflector in self.reflectors
        }

    def changes(self) -> AsyncIterator[None]:
        """Yields after changes that can affect the cluster state; concurrent changes yield once."""
        return self._changes.subscribe()

    # Reads

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        return self._nodes

    def pods_on(self, node: str) -> tuple[PodRecord, ...]:
        """All pods bound to the node that still hold resources, and our own that have ended."""
        found = self._node_pod_tuples.get(node)
        if found is None:
            found = self._node_pod_tuples[node] = tuple(self._node_pods.get(node, {}).values())
        return found

    def reservation_ids(self) -> AbstractSet[ReservationId]:
        """All reservations that have objects in the cluster, or pods that disappeared."""
        self._drop_old_gone_pods()
        return self._server_pods.keys() | self._services.keys() | self._volumes.keys() | self._gone_pods.keys()

    def get_server_parts(self, reservation_id: ReservationId) -> ServerParts:
        found = self._parts.get(reservation_id)
        if found is None:
            found = ServerParts(
                reservation_id,
                pods=tuple(self._server_pods.get(reservation_id, {}).values()),
                gone=tuple(self._gone_pods.get(reservation_id, {}).values()),
                services=tuple(self._services.get(reservation_id, {}).values()),
                volumes=tuple(self._volumes.get(reservation_id, {}).values()),
            )
            if found.pods or found.gone or found.services or found.volumes:
                self._parts[reservation_id] = found
        return found

    # Our own writes

    def record_write_response(self, response: Manifest) -> None:
        """Cache the API server's response to one of our writes immediately, before the watch delivers it."""
        stores: dict[ResourceKind, Store[Any]] = {
            POD: self._pod_store,
            SERVICE: self._service_store,
            PERSISTENT_VOLUME: self._volume_store,
        }
        store = stores.get(get_kind(response))
        if store is not None:
            store.put(response, is_write_response=True)

    def expect_removal(self, reservation_id: ReservationId) -> None:
        """Announce a teardown: pods that disappear from now on leave no record, and earlier records are dropped."""
        if reservation_id in self._server_pods:
            self._expected_removals.add(reservation_id)
        if self._gone_pods.pop(reservation_id, None) is not None:
            self._parts.pop(reservation_id, None)
            self._changes.notify()

    # Indices

    def _node_changed(self, name: str, _old: NodeRecord | None, new: NodeRecord | None) -> None:
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new
        self._node_pod_tuples.pop(name, None)
        self._changes.notify()

    def _service_changed(self, name: str, old: ServiceRecord | None, new: ServiceRecord | None) -> None:
        if old is not None:
            _remove_entry(self._services, old.reservation_id, name)
            self._parts.pop(old.reservation_id, None)
        if new is not None:
            self._services.setdefault(new.reservation_id, {})[name] = new
            self._parts.pop(new.reservation_id, None)
        self._changes.notify()

    def _volume_changed(
        self, name: str, old: PersistentVolumeRecord | None, new: PersistentVolumeRecord | None
    ) -> None:
        if old is not None:
            _remove_entry(self._volumes, old.reservation_id, name)
            self._parts.pop(old.reservation_id, None)
        if new is not None:
            self._volumes.setdefault(new.reservation_id, {})[name] = new
            self._parts.pop(new.reservation_id, None)
        self._changes.notify()

    def _pod_changed(self, name: str, old: PodRecord | None, new: PodRecord | None) -> None:
        if old is not None:
            if old.node is not None:
                _remove_entry(self._node_pods, old.node, name)
                self._node_pod_tuples.pop(old.node, None)
            if old.member is not None:
                _remove_entry(self._server_pods, old.member.reservation_id, name)
                self._parts.pop(old.member.reservation_id, None)
        if new is not None:
            if new.node is not None:
                self._node_pods.setdefault(new.node, {})[name] = new
                self._node_pod_tuples.pop(new.node, None)
            if new.member is not None:
                self._server_pods.setdefault(new.member.reservation_id, {})[name] = new
                self._parts.pop(new.member.reservation_id, None)
                if old is None or old.uid != new.uid:
                    self._clear_gone_pod(new.member.reservation_id, name)
        if _affects_state(old) or _affects_state(new):
            self._changes.notify()

    def _clear_gone_pod(self, reservation_id: ReservationId, name: str) -> None:
        _remove_entry(self._gone_pods, reservation_id, name)
        self._expected_removals.discard(reservation_id)

    def _record_gone_pod(self, pod: PodRecord, was_observed: bool) -> None:
        if pod.member is None:
            return
        reservation_id, name = pod.member.reservation_id, f"{pod.namespace}/{pod.name}"
        if name in self._server_pods.get(reservation_id, {}):
            return  # a new pod has the name already
        if reservation_id in self._expected_removals:
            if reservation_id not in self._server_pods:
                self._expected_removals.discard(reservation_id)
            return
        self._gone_pods.setdefault(reservation_id, {})[name] = GonePod(pod, self._clock.now(), was_observed)
        self._parts.pop(reservation_id, None)
        self._changes.notify()

    def _drop_old_gone_pods(self) -> None:
        """This processor handles its own within seconds. Older ones belong to reservations of another processor."""
        oldest = self._clock.now() - _LOST_POD_RETENTION
        for reservation_id in [
            rid for rid, pods in self._gone_pods.items() if all(pod.at < oldest for pod in pods.values())
        ]:
            del self._gone_pods[reservation_id]
            self._parts.pop(reservation_id, None)


def _affects_state(pod: PodRecord | None) -> bool:
    """Whether the cluster state depends on it: our pods always, others' once they are bound to a node."""
    return pod is not None and (pod.member is not None or pod.node is not None)


def _remove_entry(index: dict[Any, dict[str, Any]], key: Any, name: str) -> None:
    entries = index.get(key)
    if entries is not None:
        entries.pop(name, None)
        if not entries:
            del index[key]
