"""The control plane breaks, theirs and ours: whatever was under way, no object is lost, doubled or orphaned.

A control plane of its own, and between it and our processor a line that is cut every two seconds.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpudev.domain.reservations.lifecycle import Status
from gpudev.embedded.postgres import EmbeddedPostgres
from support.kubernetes.api import KubeApi
from support.kubernetes.bad_line import CuttingProxy
from support.kubernetes.control_plane import ControlPlane
from support.kubernetes.whole_system import Job, KubeSystem, fresh_database, nodes_of, system_on
from support.polling import eventually_async

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]
CUT_EVERY = 2.0
PATIENCE = 120.0
"""Seconds. Scheduler and kubelets wait for up to a minute before they ask again an API server that was away twice."""
STARTS_WHEN_TOLD = "play.test/never-ready"
"""So that it is still being prepared when everything else has been arranged, however long that takes."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane(kube_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(tmp_path_factory.mktemp("plane") / "kube") as plane:
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def line(plane: ControlPlane) -> AsyncIterator[CuttingProxy]:
    async with CuttingProxy(plane.port, every=CUT_EVERY) as line:
        yield line


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    plane: ControlPlane, line: CuttingProxy, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeSystem]:
    api = await KubeApi.connect(plane.kubeconfig)
    bad_line = plane.kubeconfig_with(server=line.url)
    # Starting takes longer here than by plan, and nobody is to fail for it.
    patient = {"GPU_DEV_PREPARING_DEADLINE": f"{PATIENCE:.0f}"}
    async with (
        fresh_database(postgres) as database,
        system_on(
            bad_line, api, database, tmp_path_factory.mktemp("system"), namespace="gpu-dev", **patient
        ) as running,
        nodes_of(plane, api) as nodes,
    ):
        await running.sees_nodes(*nodes.names)
        yield running
    await api.close()


@pytest_asyncio.fixture(loop_scope="module")
async def system(running: KubeSystem, line: CuttingProxy) -> AsyncIterator[KubeSystem]:
    yield running
    await running.clear()
    assert line.cuts, "the line was never cut"


async def test_an_api_server_that_is_killed_in_the_middle_of_everything_loses_nothing(
    system: KubeSystem, plane: ControlPlane
) -> None:
    """One runs, one is being prepared, one is being torn down, a gang waits; then it is gone, and people go on."""
    stays = await system.reserve("--gpus", "8")
    leaves = await system.reserve("--gpus", "4")
    starting = await system.submit("--gpus", "4", "--image", STARTS_WHEN_TOLD)
    await system.until(starting, "preparing")
    waiting = await system.until(await system.submit("--gpus", "16"), "queued")
    await system.run("cancel", leaves["job_id"], "--yes")
    await asyncio.to_thread(plane.kill_apiserver)
    meanwhile = [await system.submit("--gpus", "1"), await system.submit("--gpus", "1")]
    await system.run("cancel", meanwhile[1]["job_id"], "--yes")
    shown = await system.status(stays)
    assert shown["status"] == "active", "nobody can see it, so nobody may say that it is gone"
    await asyncio.to_thread(plane.start_apiserver)
    await let_start(system, starting)
    await system.until(starting, "active", seconds=PATIENCE)
    await system.until(meanwhile[0], "active", seconds=PATIENCE)
    await system.released(leaves, meanwhile[1], seconds=PATIENCE)
    assert (await system.status(stays))["ssh_command"] == stays["ssh_command"]
    await settled(system)
    await system.check_objects()
    await system.run("cancel", stays["job_id"], "--yes")
    await system.run("cancel", starting["job_id"], "--yes")
    await system.run("cancel", meanwhile[0]["job_id"], "--yes")
    await system.until(waiting, "active", seconds=PATIENCE)
    await settled(system)  # it may not have needed all that the three leave, and they take their time
    await system.check_objects()


async def test_a_long_silence_is_no_death_and_whatever_died_in_it_is_told(
    system: KubeSystem, line: CuttingProxy
) -> None:
    lives, dies = await system.reserve("--gpus", "1"), await system.reserve("--gpus", "1")
    line.fall_silent()
    await system.api.play(dies["pod_name"], system.namespace, "crash:9")
    # Longer than a look may be old: from then on nothing is decided.
    await eventually_async(lambda: _blind(system), "the processor did not notice the silence")
    job = await system.submit("--gpus", "1")
    assert (await system.status(dies))["status"] == "active"
    line.speak_again()
    failed = await system.until(dies, "failed")
    assert "exit code 9" in failed["failure_reason"]
    await system.until(job, "active")
    assert (await system.status(lives))["status"] == "active"
    await settled(system)
    await system.check_objects()


async def test_a_processor_that_is_killed_again_and_again_doubles_and_forgets_nothing(system: KubeSystem) -> None:
    kept = await system.reserve("--gpus", "1")
    submitted: list[Job] = []
    for gpus in ("2", "16", "1"):
        slow = await system.submit("--gpus", "1", "--image", STARTS_WHEN_TOLD)
        submitted += [slow, await system.submit("--gpus", gpus)]
        await system.until(slow, "preparing")
        if gpus == "16":
            await system.run("cancel", submitted[0]["job_id"], "--yes")
        await asyncio.to_thread(system.kill_processor)
        system.start_processor()
    await let_start(system, submitted[2], submitted[4])
    await settled(system)
    await system.check_objects()
    rows = {str(row.reservation_id): row for row in await system.stores.reservations.unreleased()}
    assert {row.status for row in rows.values()} <= {Status.ACTIVE, Status.QUEUED}
    assert rows[kept["job_id"]].status is Status.ACTIVE
    assert rows.keys() == {job["job_id"] for job in (kept, *submitted[1:])}
    assert (await system.status(kept))["ssh_command"] == kept["ssh_command"]


async def test_processor_and_api_server_may_go_at_the_same_time(system: KubeSystem, plane: ControlPlane) -> None:
    kept, gone = await system.reserve("--gpus", "1"), await system.reserve("--gpus", "1")
    started = await system.submit("--gpus", "8", "--image", "play.test/slow:300ms")
    await system.run("cancel", gone["job_id"], "--yes")
    await asyncio.to_thread(plane.kill_apiserver)
    await asyncio.to_thread(system.kill_processor)
    system.start_processor()
    await asyncio.to_thread(plane.start_apiserver)
    await system.until(started, "active", seconds=PATIENCE)
    await system.released(gone, seconds=PATIENCE)
    assert (await system.status(kept))["status"] == "active"
    await system.check_objects()


async def let_start(system: KubeSystem, *jobs: Job) -> None:
    for job in jobs:
        name = (await system.status(job))["pod_name"]
        await system.api.wait("pods", name, system.namespace, lambda pod: "phase" in pod["status"], seconds=PATIENCE)
        await system.api.play(name, system.namespace, "slow:10ms")


async def settled(system: KubeSystem) -> None:
    """Until nothing is under way any more."""

    async def look() -> bool | None:
        rows = await system.stores.reservations.unreleased()
        moving = [row for row in rows if row.status in (Status.PENDING, Status.PREPARING) or row.status.is_terminal]
        return None if moving else True

    await eventually_async(look, f"it did not settle\n{system.log()}", within=PATIENCE)


async def _blind(system: KubeSystem) -> bool | None:
    return True if "cluster.unavailable" in system.log(3) else None
