"""Operators replace machines while people work on them: nodes that KWOK plays, AWS as our stub plays it, the real
control plane, and commands as processes of their own with no more rights than are written down."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from gpudev.adapters.aws.permissions import DISK_OPERATIONS, NODE_OPERATIONS, RECONCILE_AVAILABILITY, RECONCILE_DISKS
from gpudev.adapters.kubernetes.client.rbac import NODE_MACHINES_CLUSTER_RULES, NODE_MACHINES_NAMESPACE_RULES
from gpudev.domain.disks.operations import SnapshotStatus
from gpudev.embedded.postgres import EmbeddedPostgres
from support.clouds.aws_stub import AwsStub
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.rbac_grants import grant_rights, revoke_rights
from support.kubernetes.whole_system import Job, KubeSystem, alone_on, fresh_database, nodes_of, system_on
from support.polling import eventually_async
from support.system.warm_programs import SERVER, run_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]
GROUP = "pytorch-gpu-dev-gpu-nodes-h100"
ZONE = "us-east-2a"


@dataclass
class Place:
    system: KubeSystem
    aws: AwsStub
    fake_nodes: FakeNodes
    operator: dict[str, str]
    """Whose commands run in this environment."""
    old: list[str]
    """The nodes of the group."""
    other: str
    """One that is in no group; closed in the cluster at first."""

    async def add(self, name: str, machine: str) -> str:
        labels = {"topology.ebs.csi.aws.com/zone": ZONE}
        return await self.fake_nodes.add(name, zone=ZONE, labels=labels, machine=machine)

    async def node_of(self, job: Job) -> str:
        return str((await self.system.status(job))["nodes"][0]["node"])

    async def operate(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(run_program, SERVER, arguments, self.operator, timeout=300)

    @property
    def refreshes(self) -> list[str]:
        return [one.status for one in self.aws.account.groups[GROUP].refreshes]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    kube: Cluster, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[KubeSystem, AwsStub, dict[str, str]]]:
    """The system, its AWS, and whoever operates it."""
    if not isinstance(kube, ControlPlane):
        pytest.skip("tokens of service accounts are made on a control plane of our own")
    folder = tmp_path_factory.mktemp("machines")
    aws = AwsStub()
    await aws.start()
    aws.policy = RECONCILE_AVAILABILITY | RECONCILE_DISKS | DISK_OPERATIONS | NODE_OPERATIONS
    settings = {
        "GPU_DEV_CLOUD": "aws",
        "AWS_REGION": "us-east-2",
        "GPU_DEV_DISK_POLL_EVERY": "0.2",
        "GPU_DEV_TERMINATION_GRACE": "1",
        **aws.environment(),
    }
    namespace = "gpu-dev-machines"
    async with (
        alone_on(kube, folder.parent.parent) as api,
        fresh_database(postgres) as database,
        system_on(kube.kubeconfig, api, database, folder, namespace=namespace, **settings) as system,
    ):
        await api.wait("namespaces", namespace, None, lambda _: True)  # the processor makes it
        granted = await grant_rights(api, kube, namespace, NODE_MACHINES_NAMESPACE_RULES, NODE_MACHINES_CLUSTER_RULES)
        operator = {**system.people.environment, "KUBECONFIG": granted, "GPU_DEV_KUBE_ACCESS": "kubeconfig"}
        yield system, aws, operator
        await revoke_rights(api, namespace)
    await aws.close()


@pytest_asyncio.fixture(loop_scope="module")
async def place(kube: Cluster, running: tuple[KubeSystem, AwsStub, dict[str, str]]) -> AsyncIterator[Place]:
    system, aws, operator = running
    aws.account.groups.clear()
    aws.account.give_group(GROUP, desired=2, in_service=2)
    aws.account.give_group(f"{GROUP}-spot", desired=0, in_service=0)
    async with nodes_of(kube, system.api, 0) as nodes:
        place = Place(system, aws, nodes, operator, [], "")
        place.old = [await place.add(f"old{n}", id_) for n, id_ in enumerate(aws.account.groups[GROUP].ids)]
        place.other = await place.add("other", "i-0123")
        await nodes.cordon(place.other)
        await system.sees_nodes(*place.old)
        yield place
        await system.clear()


async def test_a_groups_machines_are_replaced_when_those_who_were_told_have_left(place: Place) -> None:
    system = place.system
    job = await system.reserve("--gpus", "8", "--disk", "none")
    assert await place.node_of(job) in place.old

    done = await place.operate("nodes", "refresh", "h100", "--reason", "new driver")
    assert done.returncode == 1 and "1 reservations are still on machines" in done.stderr
    assert place.refreshes == [], "nobody is thrown out"
    told = [event["message"] for event in await system.events(job) if event["kind"] == "node_draining"]
    assert len(told) == 1 and "new driver" in told[0]
    await system.sees_nodes()

    waiting = asyncio.create_task(place.operate("nodes", "refresh", "h100", "--wait", "--reason", "new driver"))
    await place.fake_nodes.cordon(place.other, False)
    second = await system.reserve("--gpus", "8", "--disk", "none")
    assert await place.node_of(second) == place.other, "nothing new where machines go"
    assert place.refreshes == []
    await system.run("cancel", job["job_id"], "--yes")

    async def begun() -> bool | None:
        return True if place.refreshes else None

    await eventually_async(begun, "it did not begin", within=120)
    [refreshed] = place.aws.account.groups[GROUP].refreshes
    assert refreshed.preferences == {"MinHealthyPercentage": "0", "InstanceWarmup": "300"}
    again = await place.operate("nodes", "refresh", "h100", "--no-follow")
    assert again.returncode == 0 and len(place.refreshes) == 1, "one that is under way is found again"

    for node in place.old:
        await place.fake_nodes.remove(node)
    new = await place.add("old0", "i-0456")  # as it happens, under the old name
    refreshed.status, refreshed.percent = "Successful", 100
    ended = await waiting
    assert ended.returncode == 0, ended.stderr
    assert f"{GROUP}: Successful, 100%" in ended.stdout
    await system.sees_nodes(new, place.other)
    assert await system.stores.cordons.cordons() == {}


async def test_who_has_a_disk_is_moved_and_goes_on_with_the_rest_of_the_time(place: Place) -> None:
    system = place.system
    with_disk = await system.reserve("--gpus", "2", "--disk", "data", "--name", "training")
    without = await system.reserve("--gpus", "2", "--disk", "none")
    [volume] = place.aws.account.volumes.values()
    await place.fake_nodes.cordon(place.other, False)
    await system.sees_nodes(*place.old, place.other)

    with _snapshots_completed(place):
        command = ("nodes", "refresh", "h100", "--move", "--warning", "0", "--no-follow")
        moving = asyncio.create_task(place.operate(*command))
        await system.until(with_disk, "cancelled", seconds=120)

        async def again() -> Job | None:
            jobs = (await system.ask("list"))["jobs"]
            return next((one for one in jobs if one["name"] == "training" and one["status"] == "active"), None)

        moved = await eventually_async(again, "it did not come back", within=120)
    assert await place.node_of(moved) == place.other
    history = {event["kind"]: event["message"] for event in await system.events(with_disk)}
    assert "this dev server moves to another node, with its disk" in history["node_draining"]
    assert history["moved"] == f"continues as {moved['job_id'][:8]}"
    assert list(place.aws.account.volumes) == [volume.volume_id], "with the same volume"
    assert 0.9 < moved["duration_hours"] < 1, "the time that was left"
    assert (await system.status(without))["status"] == "active", "whose files would be lost is waited for"
    assert place.refreshes == []
    await system.run("cancel", without["job_id"], "--yes")
    ended = await moving
    assert ended.returncode == 0, ended.stderr
    assert place.refreshes == ["Pending"]
    assert "has no disk; waiting for its end" in ended.stdout


@contextlib.contextmanager
def _snapshots_completed(place: Place) -> Iterator[None]:
    """What is put away when somebody ends becomes complete, as it does in real life after a while."""

    async def complete() -> None:
        while True:
            for snapshot in place.aws.account.snapshots.values():
                snapshot.state = "completed"
            for record in await place.system.stores.disk_operations.list_pending_snapshots():
                settled = replace(record, status=SnapshotStatus.COMPLETED)
                await place.system.stores.disk_operations.finish_snapshot(settled, now=datetime.now(UTC))
            await asyncio.sleep(0.2)

    task = asyncio.create_task(complete())
    try:
        yield
    finally:
        task.cancel()


async def test_a_node_is_cleared_by_force_where_it_does_not_answer(place: Place) -> None:
    system = place.system
    job = await system.reserve("--gpus", "8", "--disk", "none")
    node = await place.node_of(job)
    await system.api.play(job["pod_name"], system.namespace, "stuck")

    unasked = await place.operate("nodes", "clear", node)
    assert unasked.returncode == 1, "nobody has said yes"
    done = await place.operate("nodes", "clear", node, "--yes", "--warning", "0", "--force", "--reason", "broken")
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"pod {job['pod_name']} is deleted" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{node} is empty"
    assert (await system.status(job))["status"] == "cancelled"
    said = [event["message"] for event in await system.events(job) if event["kind"] == "cancelled"]
    assert said == [f"ended by an operator: node {node} (broken) is being cleared"]
    assert node in await system.stores.cordons.cordons(), "it stays closed until somebody opens it"
