"""The parts that bring disks to dev servers and back, over the cloud that the settings name."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import structlog

from gpudev.adapters.local.cloud import LocalCloud
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.cloud import open_volumes
from gpudev.domain.disks.operations import DiskSettings
from gpudev.ports.clock import Clock, SystemClock
from gpudev.ports.cloud import CloudDisks
from gpudev.processor.disk_worker import DiskWorker
from gpudev.settings import Settings
from gpudev.workflows.adopting_disks import DiskAdoption
from gpudev.workflows.disks.operations import DiskOperations

log = structlog.get_logger(__name__)
_LOCAL_SETTLES_EVERY = timedelta(seconds=1)
_CLOUDS_SETTLE_EVERY = timedelta(seconds=15)


@contextlib.asynccontextmanager
async def open_disk_reconciler(settings: Settings, stores: Stores) -> AsyncIterator[DiskWorker | None]:
    """None: disks are the cluster's own affair."""
    async with open_volumes(settings) as cloud:
        if cloud is None:
            yield None
            return
        work = make_disk_reconciler(
            stores, cloud, SystemClock(), settings.disks, appears_within=_appears_within(settings)
        )
        if isinstance(cloud, LocalCloud):
            adopted = await DiskAdoption(stores.unlinked_disks, cloud, SystemClock(), settings.disks).adopt_all()
            if adopted:
                log.info("disks.adopted", count=adopted)
        try:
            yield work
        finally:
            await work.close()


def _appears_within(settings: Settings) -> timedelta:
    """From when something is begun until the cloud is certain to show it. Elsewhere than at AWS that is at once."""
    return settings.aws.call_deadline + settings.aws.settle_time if settings.cloud == "aws" else timedelta(0)


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
        settle_every=_LOCAL_SETTLES_EVERY if is_local else _CLOUDS_SETTLE_EVERY,
    )
