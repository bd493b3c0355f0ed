"""Opens the cloud that the settings name."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.domain.errors import Invalid
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import Cloud, NodeGroups
from gpudev.ports.cluster import ClusterMachines
from gpudev.settings import Settings


@contextlib.asynccontextmanager
async def open_cloud(settings: Settings) -> AsyncIterator[Cloud | None]:
    """None: no cloud. Folders of this machine do not count: only gpu-dev changes them, and there are no node groups."""
    async with _started_cloud(_make_cloud(settings) if settings.has_remote_cloud else None) as cloud:
        yield cloud


@contextlib.asynccontextmanager
async def open_volumes(settings: Settings) -> AsyncIterator[Cloud | None]:
    """The cloud that holds the disks' volumes. None: the cluster manages the disks, or there are none."""
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
    # Imported on use: each has its own client library.
    match settings.cloud:
        case "aws":
            from gpudev.adapters.aws.cloud import AwsCloud

            return AwsCloud(settings.aws, environment=settings.reconciling.node_group_prefix)
        case "gcp":
            from gpudev.adapters.gcp.cloud import GcpCloud

            return GcpCloud(settings.gcp, environment=settings.reconciling.node_group_prefix)
        case "local":
            from gpudev.adapters.local.cloud import LocalCloud

            return LocalCloud(settings.state_dir, SystemClock())
        case _:
            return None


# Node groups and nodes for machine refresh.


@contextlib.asynccontextmanager
async def open_node_groups(settings: Settings) -> AsyncIterator[NodeGroups]:
    if settings.cloud != "aws":
        raise Invalid("machine refresh requires AWS (GPU_DEV_CLOUD=aws); for GKE see docs/operations/gcp.md")
    from gpudev.adapters.aws.cloud import AwsCloud

    cloud = AwsCloud(settings.aws)
    try:
        await cloud.start()
        yield cloud
    finally:
        await cloud.close()


@contextlib.asynccontextmanager
async def open_cluster_machines(settings: Settings) -> AsyncIterator[ClusterMachines]:
    if settings.cluster != "kubernetes":
        raise Invalid("a Kubernetes cluster is required (GPU_DEV_CLUSTER=kubernetes)")
    from gpudev.adapters.kubernetes.client.kubernetes_api import connect_api
    from gpudev.adapters.kubernetes.uncached_access import KubernetesMachines

    machines = KubernetesMachines(connect_api(settings.kubernetes))
    try:
        yield machines
    finally:
        await machines.close()
