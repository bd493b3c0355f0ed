"""The cloud that the settings name."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.ports.cloud import Cloud
from gpudev.settings import Settings


@contextlib.asynccontextmanager
async def open_cloud(settings: Settings) -> AsyncIterator[Cloud | None]:
    """None: there is none."""
    cloud = _cloud(settings)
    if cloud is None:
        yield None
        return
    try:
        await cloud.start()
        yield cloud
    finally:
        await cloud.close()


def _cloud(settings: Settings) -> Cloud | None:
    # Imported only where it is used: each has a client library of its own.
    match settings.cloud:
        case "aws":
            from gpudev.adapters.aws.cloud import AwsCloud

            return AwsCloud(settings.aws)
        case "gcp":
            from gpudev.adapters.gcp.cloud import GcpCloud

            return GcpCloud(settings.gcp)
        case _:
            return None
