"""The cloud that the settings name."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.adapters.environment_filter import EnvironmentFilter
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import Cloud
from gpudev.settings import Settings


@contextlib.asynccontextmanager
async def open_cloud(settings: Settings) -> AsyncIterator[Cloud | None]:
    """None: there is none. Folders of this machine do not count: nobody changes them behind our back, and there are no
    groups of nodes."""
    async with _started_cloud(_make_cloud(settings) if settings.has_remote_cloud else None) as cloud:
        yield cloud


@contextlib.asynccontextmanager
async def open_volumes(settings: Settings) -> AsyncIterator[Cloud | None]:
    """Where the disks of dev servers are. None: the cluster keeps them, or there are none."""
    async with _started_cloud(_make_cloud(settings) if settings.manages_volumes else None) as cloud:
        yield cloud


@contextlib.asynccontextmanager
async def _started_cloud(cloud: Cloud | None) -> AsyncIterator[Cloud | None]:
    if cloud is None:
        yield None
        return
    try:
        await cloud.start()
        yield cloud
    finally:
        await cloud.close()


def _make_cloud(settings: Settings) -> Cloud | None:
    # Imported only where it is used: each has a client library of its own.
    match settings.cloud:
        case "aws":
            from gpudev.adapters.aws.cloud import AwsCloud

            return EnvironmentFilter(AwsCloud(settings.aws), settings.reconciling.node_group_prefix)
        case "gcp":
            from gpudev.adapters.gcp.cloud import GcpCloud

            return EnvironmentFilter(GcpCloud(settings.gcp), settings.reconciling.node_group_prefix)
        case "local":
            from gpudev.adapters.local.cloud import LocalCloud

            return LocalCloud(settings.state_dir, SystemClock())
        case _:
            return None
