"""The composition root: settings → adapters → what runs. Nothing below knows which adapters it got."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass

import structlog

from gpudev.adapters.github import GitHubKeys
from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.nodes import LocalNodes, describe_nodes, gpu_types
from gpudev.adapters.postgres.listening import Listener, ReservationChanges
from gpudev.adapters.postgres.migrating import ensure_queue_notifications, is_current
from gpudev.adapters.postgres.queue import NOTIFY_CHANNEL
from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.api.authentication import KeyIdentity
from gpudev.api.services import Services
from gpudev.domain.errors import Unavailable
from gpudev.ports.clock import SystemClock
from gpudev.processor.loop import PLANNING_LEASE, Processor
from gpudev.processor.publishing import Publisher
from gpudev.settings import Settings

log = structlog.get_logger(__name__)


def configure_logging(settings: Settings) -> None:
    """Events with fields, one line each, to standard error."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if settings.log_format == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


@contextlib.asynccontextmanager
async def open_api_services(settings: Settings) -> AsyncIterator[Services]:
    stores = open_stores(settings, max_connections=10)
    changes = ReservationChanges(settings.database)
    keys = GitHubKeys(settings.github_url)
    changes.start()
    try:
        yield Services(
            reservations=stores.reservations,
            nodes=stores.nodes,
            catalogue=stores.catalogue,
            users=stores.users,
            identity=KeyIdentity(stores.users),
            keys=keys,
            changes=changes,
            clock=SystemClock(),
            settings=settings,
            ping=stores.pool.ping,
            is_planning=lambda: stores.leases.is_held(PLANNING_LEASE),
        )
    finally:
        await changes.close()
        await keys.close()
        await stores.close()


@dataclass(frozen=True, slots=True)
class RunningProcessor:
    processor: Processor
    cluster: LocalCluster
    stores: Stores


@contextlib.asynccontextmanager
async def open_processor(settings: Settings) -> AsyncIterator[RunningProcessor]:
    nodes = describe_nodes(settings.nodes_file)
    stores = open_stores(settings, max_connections=8)
    cluster = local_cluster(settings, nodes)
    clock = SystemClock()
    await cluster.start()
    try:
        await wait_for_schema(stores)
        await stores.catalogue.describe(gpu_types(nodes))
        processor = Processor(
            reservations=stores.reservations,
            queue=stores.queue,
            leases=stores.leases,
            cluster=cluster,
            publisher=Publisher(stores.nodes, stores.catalogue),
            clock=clock,
            timing=settings.timing,
        )
        listener = Listener(
            settings.database,
            NOTIFY_CHANNEL,
            heard=lambda _: processor.wake(),
            on_connect=ensure_queue_notifications,
        )
        listener.start()
        try:
            yield RunningProcessor(processor, cluster, stores)
        finally:
            await listener.close()
    finally:
        await cluster.close()
        await stores.close()


def local_cluster(settings: Settings, nodes: LocalNodes) -> LocalCluster:
    return LocalCluster(settings.state_dir, nodes, SystemClock(), settings.ssh_host)


async def wait_for_schema(stores: Stores) -> None:
    """Services wait for the schema they need: whoever migrates may come later."""
    said = False
    while True:
        with contextlib.suppress(Unavailable):
            async with stores.pool.acquire() as connection:
                if await is_current(connection):
                    return
        if not said:
            log.info("schema.waiting")
            said = True
        await asyncio.sleep(0.2)


async def until_stopped(work: Awaitable[None]) -> None:
    """Run until it ends by itself or SIGTERM or SIGINT asks for a clean stop."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
