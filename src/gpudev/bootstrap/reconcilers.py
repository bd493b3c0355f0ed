"""Builds the reconcilers: periodic in the processor that plans, one-shot for commands."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.bootstrap.cluster import open_cloud, open_cluster
from gpudev.bootstrap.service_runtime import check_schema
from gpudev.domain.errors import GpuDevError, Invalid
from gpudev.metrics import instruments
from gpudev.planning.cluster.reconcile_availability import assign_groups, group_prefix, unmatched_warnings
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import CloudView
from gpudev.ports.cluster import ClusterObserver
from gpudev.ports.leases import ReconcilePass
from gpudev.settings import Settings
from gpudev.workflows.cluster.reconcile_availability import AvailabilityReconciliation
from gpudev.workflows.disks.reconcile_disks import DiskReconciliation
from gpudev.workflows.reservations.stale_requests import StaleRequests

if TYPE_CHECKING:  # one-shot commands do not need the planning loop
    from gpudev.processor.cluster_publisher import NodeGroupsState
    from gpudev.processor.planning_loop import Processor

# One-shot, for `gpu-dev-server reconcile`.


def updater_name() -> str:
    """Recorded as the author of updates: the pod's name, or the host's."""
    return (os.environ.get("HOSTNAME") or socket.gethostname())[:100]


@dataclass(frozen=True, slots=True)
class OneShotReconcilers:
    settings: Settings
    stores: Stores
    cloud: CloudView | None

    def disks(self) -> DiskReconciliation:
        if self.cloud is None and self.settings.cloud == "local":
            raise Invalid("on one machine disks are folders that only gpu-dev changes, so there is nothing to compare")
        if self.cloud is None:
            raise Invalid("no cloud is configured, so there are no volumes to compare disks with; set GPU_DEV_CLOUD")
        return DiskReconciliation(self.cloud, self.stores.disk_records, SystemClock(), updater_name())

    @contextlib.asynccontextmanager
    async def availability(self) -> AsyncIterator[AvailabilityReconciliation]:
        async with self._open_cluster_view() as cluster:
            yield AvailabilityReconciliation(
                cluster=cluster,
                cordons=self.stores.cordons,
                cloud=self.cloud,
                unreleased=self.stores.unreleased,
                catalogue=self.stores.catalogue.catalogue,
                store=self.stores.availability,
                clock=SystemClock(),
                prefix=self.settings.reconciling.node_group_prefix,
                by=updater_name(),
            )

    @contextlib.asynccontextmanager
    async def _open_cluster_view(self) -> AsyncIterator[ClusterObserver]:
        if self.settings.cluster == "kubernetes":
            from gpudev.adapters.kubernetes.uncached_access import UncachedCluster

            uncached = UncachedCluster(self.settings.kubernetes, self.stores.catalogue.catalogue, SystemClock())
            try:
                yield uncached
            finally:
                await uncached.close()
            return
        cluster = await open_cluster(self.settings, self.stores, starts_servers=False)
        await cluster.start()
        try:
            yield cluster
        finally:
            await cluster.close()


@contextlib.asynccontextmanager
async def open_reconcilers(settings: Settings) -> AsyncIterator[OneShotReconcilers]:
    stores = open_stores(settings, max_connections=3)
    try:
        await check_schema(stores)
        async with open_cloud(settings) as cloud:
            yield OneShotReconcilers(settings, stores, cloud)
    finally:
        await stores.close()


log = structlog.get_logger(__name__)
_STALE_REQUESTS_EVERY = timedelta(minutes=1)
_NODE_GROUPS_EVERY = timedelta(minutes=1)
"""How often the processor reads the cloud's node groups."""
_DISKS_EVERY = timedelta(minutes=5)
"""How often the processor compares the recorded disks with the cloud's volumes."""
_REOPEN_CLOUD_AFTER = timedelta(minutes=1)


async def run_periodic_reconcilers(
    settings: Settings, stores: Stores, groups: "NodeGroupsState", processor: "Processor"
) -> None:
    """Until cancelled."""
    without_cloud = PeriodicReconciler(settings, stores, None, groups)
    requests = _run_periodically(
        "stale_requests", _STALE_REQUESTS_EVERY, processor, without_cloud.reconcile_stale_requests
    )
    await asyncio.gather(requests, _run_with_cloud(settings, stores, groups, processor))


async def _run_with_cloud(
    settings: Settings, stores: Stores, groups: "NodeGroupsState", processor: "Processor"
) -> None:
    """Retries a cloud that cannot be opened (no library or credentials); the other passes go on."""
    while settings.has_remote_cloud:
        try:
            async with open_cloud(settings) as cloud:
                reconciler = PeriodicReconciler(settings, stores, cloud, groups)
                await asyncio.gather(
                    _run_periodically("groups", _NODE_GROUPS_EVERY, processor, reconciler.refresh_node_groups),
                    _run_periodically("disks", _DISKS_EVERY, processor, reconciler.reconcile_disks),
                )
        except GpuDevError as error:
            log.error("cloud.unavailable", cloud=settings.cloud, error=str(error))
        except Exception:
            log.exception("cloud.unexpected_error", cloud=settings.cloud)
        await asyncio.sleep(_REOPEN_CLOUD_AFTER.total_seconds())


class PeriodicReconciler:
    """The passes that the processor runs periodically. A pass that another process is running is skipped."""

    def __init__(self, settings: Settings, stores: Stores, cloud: CloudView | None, groups: "NodeGroupsState") -> None:
        self._prefix = settings.reconciling.node_group_prefix
        self._stores = stores
        self._cloud = cloud
        self._groups = groups

    async def reconcile_stale_requests(self) -> None:
        requests = StaleRequests(self._stores.reservations, self._stores.planning_records, SystemClock())
        async with self._stores.reconcile_locks.hold(ReconcilePass.EXPIRY, wait=False) as busy:
            if busy is None:
                report = await requests.run()
                if report.sent_again or report.cancelled:
                    log.warning("requests.stale", sent_again=report.sent_again, cancelled=report.cancelled)

    async def refresh_node_groups(self) -> None:
        assert self._cloud is not None
        prefix = self._prefix
        groups = await self._cloud.node_groups(group_prefix(prefix))
        before, now = self._groups.groups, assign_groups(groups, prefix, await self._stores.availability.type_names())
        self._groups.groups = now
        if before is None or before.unmatched != now.unmatched:
            for warning in unmatched_warnings(now):
                log.warning("groups.unmatched", warning=warning)

    async def reconcile_disks(self) -> None:
        assert self._cloud is not None
        async with self._stores.reconcile_locks.hold(ReconcilePass.DISKS, wait=False) as busy:
            if busy is not None:
                log.info("disks.busy", by=busy)
                return
            reconciliation = DiskReconciliation(self._cloud, self._stores.disk_records, SystemClock(), updater_name())
            report = await reconciliation.run()
        log.info("disks.reconciled", **asdict(report.statistics))
        for kind, count in asdict(report.statistics).items():
            instruments.disk_drift.labels(kind).set(count)
        for error in report.errors:
            log.error("disks.error", error=error)
        for duplicate in report.duplicates:
            log.warning("disks.duplicate", **asdict(duplicate))
        for skipped in report.skipped:
            log.warning("disks.skipped", **asdict(skipped))


async def _run_periodically(
    name: str, every: timedelta, processor: "Processor", run_pass: Callable[[], Awaitable[None]]
) -> None:
    """Never ends: any error is logged and counted, and the pass is retried."""
    while True:
        try:
            if processor.is_planning:
                with instruments.reconcile_seconds.labels(name).time():
                    await run_pass()
                instruments.reconcile_passes.labels(name, "done").inc()
                instruments.reconciled_at.labels(name).set_to_current_time()
        except GpuDevError as error:
            log.warning("reconcile.failed", name=name, error=str(error))
            instruments.reconcile_passes.labels(name, "failed").inc()
        except Exception:
            log.exception("reconcile.unexpected_error", name=name)
            instruments.reconcile_passes.labels(name, "broken").inc()
        await asyncio.sleep(every.total_seconds() if processor.is_planning else 1)
