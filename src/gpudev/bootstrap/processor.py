"""The processor's parts, on this machine or on Kubernetes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import structlog

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine.nodes import LocalNodes, describe_nodes, gpu_types
from gpudev.adapters.postgres.database.cleanup import forget_what_is_over
from gpudev.adapters.postgres.database.listener import Listener
from gpudev.adapters.postgres.database.migrator import ensure_queue_notifications
from gpudev.adapters.postgres.disks.operations import CHANGES_CHANNEL as DISK_CHANGES_CHANNEL
from gpudev.adapters.postgres.queue.message_queue import NOTIFY_CHANNEL
from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.bootstrap.disks import open_disk_work
from gpudev.bootstrap.notifications import telling_outside
from gpudev.bootstrap.reconcilers import keep_reconciling
from gpudev.bootstrap.service_runtime import check_schema, wait_for_schema
from gpudev.domain.errors import Unavailable
from gpudev.ports.clock import Clock, SystemClock
from gpudev.ports.cluster import Cluster
from gpudev.ports.tracing import UNTRACED, Tracer
from gpudev.processor.addon_reconciler import Interiors
from gpudev.processor.anchoring import Anchoring
from gpudev.processor.cluster_publisher import GroupsSeen, Publisher
from gpudev.processor.disk_attachment import Homes
from gpudev.processor.disk_worker import DiskWork
from gpudev.processor.planning_loop import Processor
from gpudev.processor.planning_records import Looking
from gpudev.processor.queue_planner import Queues
from gpudev.settings import FairShare, Settings, Timing

log = structlog.get_logger(__name__)
_HOUSEKEEPING_EVERY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RunningProcessor:
    processor: Processor
    cluster: Cluster
    stores: Stores


@contextlib.asynccontextmanager
async def open_processor(settings: Settings, tracer: Tracer = UNTRACED) -> AsyncIterator[RunningProcessor]:
    stores = open_stores(settings, max_connections=8)
    try:
        await wait_for_schema(stores)
        cluster = await open_cluster(settings, stores)
        await cluster.start()
        try:
            async with (
                open_disk_work(settings, stores) as disks,
                _listening(settings, stores, cluster, disks, tracer) as processor,
                telling_outside(settings.notify, stores, lambda: processor.is_planning),
            ):
                yield RunningProcessor(processor, cluster, stores)
        finally:
            await cluster.close()
    finally:
        await stores.close()


@contextlib.asynccontextmanager
async def open_backstop(settings: Settings) -> AsyncIterator[RunningProcessor]:
    """For `expire`: a processor that is not run, and so does nothing by itself."""
    stores = open_stores(settings, max_connections=8)
    try:
        await check_schema(stores)
        cluster = await open_cluster(settings, stores, starts_servers=False)
        await cluster.start()
        try:
            async with open_disk_work(settings, stores) as disks:
                clock = SystemClock()
                processor = make_processor(stores, cluster, clock, settings.timing, settings.fair_share, disks=disks)
                yield RunningProcessor(processor, cluster, stores)
        finally:
            await cluster.close()
    finally:
        await stores.close()


async def open_cluster(settings: Settings, stores: Stores, *, starts_servers: bool = True) -> Cluster:
    """Not started yet."""
    if settings.cluster == "kubernetes":
        # Imported only here: one machine does without Kubernetes' client.
        from gpudev.adapters.kubernetes.cluster import KubernetesCluster

        catalogue = await stores.catalogue.catalogue()
        return KubernetesCluster(settings.kubernetes, catalogue, SystemClock(), starts_servers=starts_servers)
    nodes = nodes_of_this_machine(settings)
    await stores.catalogue.describe(gpu_types(nodes))
    return local_cluster(settings, nodes)


@contextlib.asynccontextmanager
async def _listening(
    settings: Settings, stores: Stores, cluster: Cluster, disks: DiskWork | None, tracer: Tracer
) -> AsyncIterator[Processor]:
    groups = GroupsSeen(has_cloud=settings.has_remote_cloud)
    processor = make_processor(
        stores, cluster, SystemClock(), settings.timing, settings.fair_share, groups=groups, disks=disks, tracer=tracer
    )
    listeners = [
        Listener(
            settings.database,
            NOTIFY_CHANNEL,
            heard=lambda _: processor.wake(),
            on_connect=ensure_queue_notifications,
        )
    ]
    if disks is not None:
        listeners.append(Listener(settings.database, DISK_CHANGES_CHANNEL, heard=disks.heard))
    for listener in listeners:
        listener.start()
    keeping = [
        asyncio.create_task(keep_house(stores), name="housekeeping"),
        asyncio.create_task(keep_reconciling(settings, stores, groups, processor), name="reconciling"),
    ]
    try:
        yield processor
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        for listener in listeners:
            await listener.close()


def nodes_of_this_machine(settings: Settings) -> LocalNodes:
    """As described or detected. A machine that once had real GPUs is never taken for a simulated one: its driver is
    late or broken, and whoever supervises us tries again."""
    nodes = describe_nodes(settings.nodes_file)
    mark = settings.state_dir / "real-gpus"
    if nodes.has_real_gpus:
        mark.touch()
    elif settings.nodes_file is None and mark.exists():
        raise Unavailable(f"this machine's NVIDIA GPUs do not answer; if they are gone for good, remove {mark}")
    return nodes


async def keep_house(stores: Stores) -> None:
    """Now and then, until cancelled."""
    while True:
        try:
            requests, keys = await forget_what_is_over(stores.pool)
            log.info("housekeeping.done", idempotency_keys=requests, api_keys=keys)
        except Unavailable as error:
            log.warning("housekeeping.unavailable", error=str(error))
        await asyncio.sleep(_HOUSEKEEPING_EVERY.total_seconds())


def make_processor(
    stores: Stores,
    cluster: Cluster,
    clock: Clock,
    timing: Timing,
    fair_share: FairShare | None = None,
    *,
    groups: GroupsSeen | None = None,
    disks: DiskWork | None = None,
    tracer: Tracer = UNTRACED,
) -> Processor:
    """`disks` None: they are the cluster's own affair."""
    homes = None if disks is None else Homes(disks, stores.held_disks, stores.reservations, clock, timing)
    anchoring = None if disks is None else Anchoring(stores.disk_places, disks.settings.move_takes)
    share = fair_share or FairShare()
    return Processor(
        reservations=stores.reservations,
        unreleased=stores.unreleased,
        queue=stores.queue,
        leases=stores.leases,
        cluster=cluster,
        cordons=stores.cordons,
        queues=Queues(stores.plans, stores.estimates, stores.users, timing, share, anchoring=anchoring),
        publisher=Publisher(stores.nodes, stores.catalogue, groups),
        looking=Looking(stores.looks),
        clock=clock,
        timing=timing,
        disks=disks,
        homes=homes,
        interiors=Interiors(stores.interiors, stores.reservations, cluster, clock),
        setups=stores.setups,
        tracer=tracer,
    )


def local_cluster(settings: Settings, nodes: LocalNodes) -> LocalCluster:
    closed = tuple(sorted({port for _, port in settings.own_addresses}))
    return LocalCluster(settings.state_dir, nodes, SystemClock(), settings.ssh_host, closed_ports=closed)
