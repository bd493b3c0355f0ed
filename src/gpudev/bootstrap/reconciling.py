"""The parts of the passes that keep records true, for those who run one once."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.bootstrap.cloud import open_cloud
from gpudev.bootstrap.service_runtime import check_schema
from gpudev.domain.errors import Invalid
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import CloudView
from gpudev.ports.reconciling import ClusterObserver
from gpudev.settings import Settings
from gpudev.workflows.cluster.reconcile_availability import AvailabilityReconciliation
from gpudev.workflows.disks.reconcile_disks import DiskReconciliation


def updater_name() -> str:
    """Who updated something: the pod's name, where there is one."""
    return (os.environ.get("HOSTNAME") or socket.gethostname())[:100]


@dataclass(frozen=True, slots=True)
class OneShotReconcilers:
    settings: Settings
    stores: Stores
    cloud: CloudView | None

    def disks(self) -> DiskReconciliation:
        if self.cloud is None and self.settings.cloud == "local":
            raise Invalid("on one machine disks are folders that nobody else changes: there is nothing to compare")
        if self.cloud is None:
            raise Invalid("no cloud is configured, so there are no volumes to compare disks with: set GPU_DEV_CLOUD")
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

            reading = UncachedCluster(self.settings.kubernetes, self.stores.catalogue.catalogue, SystemClock())
            try:
                yield reading
            finally:
                await reading.close()
            return
        from gpudev.bootstrap.processor import open_cluster

        cluster = await open_cluster(self.settings, self.stores)
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
