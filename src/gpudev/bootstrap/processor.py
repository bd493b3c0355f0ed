"""Builds the processor, on one machine or on Kubernetes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import structlog

from gpudev.adapters.aws.client import CALL_LIMITS
from gpudev.adapters.local.cloud import LocalCloud
from gpudev.adapters.postgres.database.cleanup import delete_old_rows
from gpudev.adapters.postgres.database.listener import Listener
from gpudev.adapters.postgres.database.migrator import ensure_queue_notifications
from gpudev.adapters.postgres.disks.operations import DISK_OPERATION_CHANGES_CHANNEL as DISK_CHANGES_CHANNEL
from gpudev.adapters.postgres.queue.message_queue import QUEUE_INSERT_CHANNEL
from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.bootstrap.cluster import open_cluster, open_volumes
from gpudev.bootstrap.notifications import run_notifications
from gpudev.bootstrap.reconcilers import run_periodic_reconcilers
from gpudev.bootstrap.service_runtime import check_schema, wait_for_schema
from gpudev.domain.disks.operations import DiskSettings
from gpudev.ports.clock import Clock, SystemClock
from gpudev.ports.cloud import CloudDisks
from gpudev.ports.cluster import Cluster
from gpudev.ports.tracing import NO_TRACER, Tracer
from gpudev.processor.addon_reconciler import AddonReconciler
from gpudev.processor.cluster_publisher import ClusterPublisher, NodeGroupsState
from gpudev.processor.disk_attachment import DiskAttacher
from gpudev.processor.disk_worker import DiskWorker
from gpudev.processor.planning_loop import PlanningRecorder, Processor
from gpudev.processor.queue_planner import DiskZones, QueuePlanner
from gpudev.processor.workers import WorkLoop
from gpudev.settings import FairShareSettings, Settings, TimingSettings
from gpudev.workflows.disks.operations import DiskOperations
from gpudev.workflows.disks.reconcile_disks import DiskAdoption

log = structlog.get_logger(__name__)
_LOCAL_CHECK_EVERY = timedelta(seconds=1)
_CLOUD_CHECK_EVERY = timedelta(seconds=15)


@contextlib.asynccontextmanager
async def open_disk_reconciler(settings: Settings, stores: Stores) -> AsyncIterator[DiskWorker | None]:
    """None: the cluster manages the disks itself."""
    async with open_volumes(settings) as cloud:
        if cloud is None:
            yield None
            return
        worker = make_disk_reconciler(
            stores, cloud, SystemClock(), settings.disks, appears_within=_appears_within(settings)
        )
        if isinstance(cloud, LocalCloud):
            adopted = await DiskAdoption(stores.unlinked_disks, cloud, SystemClock(), settings.disks).adopt_all()
            if adopted:
                log.info("disks.adopted", count=adopted)
        try:
            yield worker
        finally:
            await worker.close()


def _appears_within(settings: Settings) -> timedelta:
    """How long after a call the cloud may not yet list its result. Zero everywhere but on AWS."""
    return CALL_LIMITS.appears_within if settings.cloud == "aws" else timedelta(0)


def make_disk_reconciler(
    stores: Stores,
    cloud: CloudDisks,
    clock: Clock,
    settings: DiskSettings,
    *,
    appears_within: timedelta = timedelta(0),
) -> DiskWorker:
    operations = DiskOperations(stores.disk_operations, cloud, clock, settings, appears_within=appears_within)
    is_local = isinstance(cloud, LocalCloud)
    return DiskWorker(
        operations,
        stores.message_queue,
        stores.disk_contents,
        contents_of=cloud.snapshot_contents if isinstance(cloud, LocalCloud) else None,
        settle_every=_LOCAL_CHECK_EVERY if is_local else _CLOUD_CHECK_EVERY,
    )


_RETENTION_EVERY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RunningProcessor:
    processor: Processor
    cluster: Cluster
    stores: Stores


@contextlib.asynccontextmanager
async def open_processor(settings: Settings, tracer: Tracer = NO_TRACER) -> AsyncIterator[RunningProcessor]:
    stores = open_stores(settings, max_connections=8)
    try:
        await wait_for_schema(stores)
        cluster = await open_cluster(settings, stores)
        await cluster.start()
        try:
            async with (
                open_disk_reconciler(settings, stores) as disks,
                _with_background_tasks(settings, stores, cluster, disks, tracer) as processor,
                run_notifications(settings.notify, stores, lambda: processor.is_planning),
            ):
                yield RunningProcessor(processor, cluster, stores)
        finally:
            await cluster.close()
    finally:
        await stores.close()


@contextlib.asynccontextmanager
async def open_expiry_backstop(settings: Settings) -> AsyncIterator[RunningProcessor]:
    """For `expire`: a processor whose loop does not run."""
    stores = open_stores(settings, max_connections=8)
    try:
        await check_schema(stores)
        cluster = await open_cluster(settings, stores, starts_servers=False)
        await cluster.start()
        try:
            async with open_disk_reconciler(settings, stores) as disks:
                clock = SystemClock()
                processor = make_processor(stores, cluster, clock, settings.timing, settings.fair_share, disks=disks)
                yield RunningProcessor(processor, cluster, stores)
        finally:
            await cluster.close()
    finally:
        await stores.close()


@contextlib.asynccontextmanager
async def _with_background_tasks(
    settings: Settings, stores: Stores, cluster: Cluster, disks: DiskWorker | None, tracer: Tracer
) -> AsyncIterator[Processor]:
    groups = NodeGroupsState(has_cloud=settings.has_remote_cloud)
    processor = make_processor(
        stores, cluster, SystemClock(), settings.timing, settings.fair_share, groups=groups, disks=disks, tracer=tracer
    )
    listeners = [
        Listener(
            settings.database,
            QUEUE_INSERT_CHANNEL,
            on_payload=lambda _: processor.wake(),
            on_connect=ensure_queue_notifications,
        )
    ]
    if disks is not None:
        listeners.append(Listener(settings.database, DISK_CHANGES_CHANNEL, on_payload=disks.on_notification))
    for listener in listeners:
        listener.start()
    tasks = [
        asyncio.create_task(run_retention(stores), name="retention"),
        asyncio.create_task(run_periodic_reconcilers(settings, stores, groups, processor), name="reconciling"),
    ]
    try:
        yield processor
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in listeners:
            await listener.close()


async def run_retention(stores: Stores) -> None:
    """Periodically, until cancelled."""

    async def run_round() -> timedelta:
        requests, keys = await delete_old_rows(stores.pool)
        log.info("retention.done", idempotency_keys=requests, api_keys=keys)
        return _RETENTION_EVERY

    await WorkLoop("retention", run_round, rest=_RETENTION_EVERY).run()


def make_processor(
    stores: Stores,
    cluster: Cluster,
    clock: Clock,
    timing: TimingSettings,
    fair_share: FairShareSettings | None = None,
    *,
    groups: NodeGroupsState | None = None,
    disks: DiskWorker | None = None,
    tracer: Tracer = NO_TRACER,
) -> Processor:
    """`disks` None: the cluster manages the disks itself."""
    disk_zones = attacher = None
    if disks is not None:
        disk_zones = DiskZones(stores.disk_locations, disks.operations.settings.move_takes)
        attacher = DiskAttacher(
            disks.operations,
            disks,
            attachments=stores.attachments,
            contents=stores.disk_contents,
            reservations=stores.reservations,
            timing=timing,
        )
    share = fair_share or FairShareSettings()
    return Processor(
        reservations=stores.reservations,
        unreleased=stores.unreleased,
        queue=stores.message_queue,
        leases=stores.leases,
        cluster=cluster,
        cordons=stores.cordons,
        queue_planner=QueuePlanner(stores.plans, stores.estimates, stores.users, timing, share, disk_zones=disk_zones),
        publisher=ClusterPublisher(stores.nodes, stores.catalogue, groups),
        planning_records=PlanningRecorder(stores.planning_records),
        clock=clock,
        timing=timing,
        disks=disks,
        disk_attacher=attacher,
        addons=AddonReconciler(stores.addons, stores.reservations, cluster, clock),
        personalizations=stores.personalizations,
        tracer=tracer,
    )
