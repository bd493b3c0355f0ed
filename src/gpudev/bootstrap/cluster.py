"""Opens the cluster that the settings name: this machine, or Kubernetes."""

from typing import TYPE_CHECKING

from gpudev.adapters.local.machine.nodes import LocalNodes, gpu_types, load_nodes
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.errors import Unavailable
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import Cluster
from gpudev.settings import Settings

if TYPE_CHECKING:
    from gpudev.adapters.local.cluster import LocalCluster


async def open_cluster(settings: Settings, stores: Stores, *, starts_servers: bool = True) -> Cluster:
    """The cluster, not yet started."""
    if settings.cluster == "kubernetes":
        # Imported on use: a single machine needs no Kubernetes client.
        from gpudev.adapters.kubernetes.cluster import KubernetesCluster

        catalogue = await stores.catalogue.catalogue()
        return KubernetesCluster(settings.kubernetes, catalogue, SystemClock(), starts_servers=starts_servers)
    nodes = get_local_nodes(settings)
    await stores.catalogue.save_gpu_types(gpu_types(nodes))
    return make_local_cluster(settings, nodes)


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


def make_local_cluster(settings: Settings, nodes: LocalNodes) -> "LocalCluster":
    # Imported on use: not needed on Kubernetes, nor by commands that open no cluster.
    from gpudev.adapters.local.cluster import LocalCluster

    closed_ports = tuple(sorted({port for _, port in settings.own_addresses}))
    return LocalCluster(settings.state_dir, nodes, SystemClock(), settings.ssh_host, closed_ports=closed_ports)
