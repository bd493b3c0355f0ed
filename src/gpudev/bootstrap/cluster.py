"""Opens the cluster (this machine or Kubernetes) and the cloud that the settings name."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gpudev.adapters.local.machine.nodes import LOCAL_INSTANCE, LocalNodes, gpu_types, load_nodes
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.cluster import Catalogue
from gpudev.domain.errors import Invalid, Unavailable
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import Cloud, NodeGroups
from gpudev.ports.cluster import Cluster, ClusterMachines
from gpudev.settings import Settings

if TYPE_CHECKING:
    from gpudev.adapters.local.cluster import LocalCluster


async def open_cluster(settings: Settings, stores: Stores, *, starts_servers: bool = True) -> Cluster:
    """The cluster, not yet started. Only the processor, which starts servers, records this machine's GPU types."""
    if settings.cluster == "kubernetes":
        # Imported on use: a single machine needs no Kubernetes client.
        from gpudev.adapters.kubernetes.cluster import KubernetesCluster

        catalogue = await stores.catalogue.catalogue()
        return KubernetesCluster(settings.kubernetes, catalogue, SystemClock(), starts_servers=starts_servers)
    nodes = get_local_nodes(settings)
    if starts_servers:
        await stores.catalogue.save_gpu_types(gpu_types(nodes))
    else:
        check_catalogue(settings, nodes, await stores.catalogue.catalogue())
    return make_local_cluster(settings, nodes, starts_servers=starts_servers)


def check_catalogue(settings: Settings, nodes: LocalNodes, catalogue: Catalogue) -> None:
    """Raises Invalid if the catalogue is not this machine's, unless a file describes its nodes. A command meant for
    another cluster would otherwise record this machine's nodes as that cluster's."""
    known = {each.name for each in catalogue.values() if each.instance_type == LOCAL_INSTANCE}
    if settings.nodes_file is None and not known.issuperset(node.gpu_type for node in nodes.nodes):
        raise Invalid(
            "the recorded GPU types are not those of this machine; for a Kubernetes cluster set "
            "GPU_DEV_CLUSTER=kubernetes or EKS_CLUSTER_NAME, for this machine start its processor first"
        )


def get_local_nodes(settings: Settings) -> LocalNodes:
    """Nodes as described in the file, or detected. A machine that once had real GPUs never becomes a simulated one: its
    driver is not ready or broken, and the supervisor retries."""
    nodes = load_nodes(settings.nodes_file)
    marker = settings.state_dir / "real-gpus"
    if nodes.has_real_gpus:
        marker.touch()
    elif settings.nodes_file is None and marker.exists():
        raise Unavailable(
            f"this machine's NVIDIA GPUs do not answer; if they were removed permanently, delete {marker}"
        )
    return nodes


def make_local_cluster(settings: Settings, nodes: LocalNodes, *, starts_servers: bool = True) -> "LocalCluster":
    """`starts_servers` False: it only ends dev servers, which needs no networks."""
    # Imported on use: not needed on Kubernetes, nor by commands that open no cluster.
    from gpudev.adapters.local.cluster import LocalCluster
    from gpudev.adapters.local.network.plan import NetworkSetting

    closed_ports = tuple(sorted({port for _, port in settings.own_addresses}))
    return LocalCluster(
        settings.state_dir,
        nodes,
        SystemClock(),
        settings.ssh_host,
        network=NetworkSetting(settings.network) if starts_servers else None,
        network_range=settings.network_range,
        closed_ports=closed_ports,
        has_user_namespaces=settings.user_namespaces,
    )


# The cloud: volumes, snapshots and node groups.


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
