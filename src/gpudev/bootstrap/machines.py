"""What operators' commands replace machines with: the cloud's groups of nodes, and the cluster's nodes."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.domain.errors import Invalid
from gpudev.ports.node_groups import ClusterMachines, NodeGroups
from gpudev.settings import Settings


@contextlib.asynccontextmanager
async def open_node_groups(settings: Settings) -> AsyncIterator[NodeGroups]:
    if settings.cloud != "aws":
        raise Invalid("machines are replaced here only on AWS (GPU_DEV_CLOUD=aws); on GKE, see docs/operations/gcp.md")
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
        raise Invalid("this needs a Kubernetes cluster: GPU_DEV_CLUSTER=kubernetes")
    from gpudev.adapters.kubernetes.client.kubernetes_api import connect_api
    from gpudev.adapters.kubernetes.machines import KubernetesMachines

    machines = KubernetesMachines(connect_api(settings.kubernetes))
    try:
        yield machines
    finally:
        await machines.close()
