"""`gpu-dev-server reconcile all` as it runs in a cluster: real nodes and pods in the API server, AWS as our stub plays
it, a real database, and no more rights than are written down."""

import os
from pathlib import Path

import pytest

from gpudev.adapters.aws.permissions import RECONCILE_AVAILABILITY, RECONCILE_DISKS
from gpudev.adapters.kubernetes.client.rbac import OBSERVE_CLUSTER_RULES
from gpudev.adapters.postgres.stores import Stores
from gpudev.settings import DatabaseSettings
from support.clouds.aws_stub import AwsStub
from support.kubernetes.api import KubeApi
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.objects import foreign_pod
from support.kubernetes.rbac_grants import grant_rights, revoke_rights
from support.system.reconcile_commands import Operator, columns, give

pytestmark = pytest.mark.slow


async def test_both_phases_with_exactly_the_rights_that_are_written_down(
    kube: Cluster,
    kube_api: KubeApi,
    fake_nodes: FakeNodes,
    namespace: str,
    database: DatabaseSettings,
    stores: Stores,
    tmp_path: Path,
) -> None:
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    names = [await fake_nodes.add(name, gpus=8, gpu_type="h100") for name in ("a", "b", "c")]
    await kube_api.create("pods", foreign_pod("stranger", names[0], 3), namespace)
    await fake_nodes.cordon(names[2])
    stub = AwsStub()
    await stub.start()
    stub.policy = RECONCILE_AVAILABILITY | RECONCILE_DISKS
    stub.account.give_group("pytorch-gpu-dev-gpu-nodes-h100-1", desired=4, in_service=3)
    stub.account.give_group("pytorch-gpu-dev-gpu-nodes-h100-spot", desired=9, in_service=9)
    give(stub, "ada", "work")
    async with stores.pool.acquire() as connection:
        await connection.execute(
            """
            INSERT INTO gpu_types (gpu_type, instance_type, max_gpus, cpus, memory_gb)
            VALUES ('h100-spot', 'spot', 8, 192, 2048)
            """
        )
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "AWS_", "XDG_"))}
    operator = Operator(
        {
            **kept,
            **stub.environment(),
            "POSTGRES_HOST": database.host,
            "POSTGRES_PORT": str(database.port),
            "POSTGRES_USER": database.user,
            "POSTGRES_DB": database.database,
            "GPU_DEV_HOME": str(tmp_path / "state"),
            "GPU_DEV_CLUSTER": "kubernetes",
            "GPU_DEV_KUBE_ACCESS": "kubeconfig",
            "GPU_DEV_NAMESPACE": namespace,
            "KUBECONFIG": await grant_rights(kube_api, kube, namespace, [], OBSERVE_CLUSTER_RULES),
            "GPU_DEV_CLOUD": "aws",
        }
    )
    try:
        done = await operator.run("reconcile", "all", "--scheduled", "--json")
        assert done.code == 0, done.err + done.out
        row = await columns(stores)
        numbers = ("total_cluster_gpus", "available_gpus", "max_reservable", "full_nodes_available")
        assert tuple(row[name] for name in numbers) == (24, 13, 8, 1)
        assert (row["running_instances"], row["desired_capacity"]) == (3, 4)
        assert (await columns(stores, "h100-spot"))["total_cluster_gpus"] == 72, "running, and not in the cluster yet"
        assert [record.disk_name for record in await stores.disk_records.list_records()] == ["work"]
        assert stub.actions_called == RECONCILE_AVAILABILITY | RECONCILE_DISKS
    finally:
        await revoke_rights(kube_api, namespace)
        await stub.close()
