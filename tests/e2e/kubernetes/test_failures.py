"""What goes wrong on a cluster, as people see it: told in words within seconds, and nothing is left over."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from gpudev.embedded.postgres import EmbeddedPostgres
from support.kubernetes.api import Object
from support.kubernetes.control_plane import Cluster, ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.whole_system import KINDS, Job, KubeSystem, alone_on, fresh_database, nodes_of, system_on
from support.polling import eventually_async

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
RESERVATION_ENDED = 6


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    kube: Cluster, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeSystem]:
    folder = tmp_path_factory.mktemp("system")
    async with (
        alone_on(kube, folder.parent.parent) as api,
        fresh_database(postgres) as database,
        system_on(kube.kubeconfig, api, database, folder, namespace="gpu-dev-faults") as running,
    ):
        await api.create("namespaces", {"metadata": {"name": "elsewhere"}})
        yield running
        await api.delete("namespaces", "elsewhere")


@pytest_asyncio.fixture(loop_scope="module")
async def nodes(kube: Cluster, running: KubeSystem) -> AsyncIterator[FakeNodes]:
    async with nodes_of(kube, running.api) as nodes:
        await running.sees_nodes(*nodes.names)
        yield nodes
        for pod in await running.api.list("pods", "elsewhere"):
            await running.api.delete("pods", pod["metadata"]["name"], "elsewhere", grace=0)
        await running.clear()


@pytest.fixture
def system(running: KubeSystem, nodes: FakeNodes) -> KubeSystem:
    return running


# --- Dev servers that die, or never live ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("play", "words"),
    [
        ("crash:3", "it ended with exit code 3"),
        ("oom", "it ran out of memory and was killed (OOMKilled)"),
        ("evicted", "evicted from"),
    ],
)
async def test_the_death_of_a_running_one_is_told_and_cleared_away(
    system: KubeSystem, kube: Cluster, play: str, words: str
) -> None:
    if isinstance(kube, ControlPlane):
        kube.set_pod_log("loading the model\nthat was too much\n")
    job = await system.reserve("--gpus", "1")
    await system.api.play(job["pod_name"], system.namespace, play)
    failed = await system.until(job, "failed", seconds=10)
    assert words in failed["failure_reason"]
    if isinstance(kube, ControlPlane):
        assert failed["failure_reason"].endswith("Its last log lines:\nloading the model\nthat was too much")
    await system.released(job)
    assert await system.pods() == {}
    said, _ = await system.run("status", job["job_id"])
    assert words in said


async def test_a_pod_that_somebody_deletes_is_told(system: KubeSystem) -> None:
    job = await system.reserve("--gpus", "1")
    await system.api.delete("pods", job["pod_name"], system.namespace)
    failed = await system.until(job, "failed", seconds=10)
    assert "deleted from outside gpu-dev" in failed["failure_reason"]
    await system.released(job)


async def test_an_image_that_cannot_be_pulled_fails_with_its_name(system: KubeSystem) -> None:
    said, error = await system.run(
        "reserve", "--gpus", "1", "--hours", "1", "--yes", "--image", "play.test/pull-error", code=RESERVATION_ENDED
    )
    assert "the image play.test/pull-error was not found or may not be pulled" in error
    short = said.split()[1].rstrip(":")
    assert "preparing" in [event["kind"] for event in await system.events({"job_id": short})]


async def test_one_that_is_never_ready_fails_at_its_deadline_with_what_it_was_doing(system: KubeSystem) -> None:
    job = await system.submit("--gpus", "16", "--image", "play.test/never-ready")
    failed = await system.until(job, "failed")
    assert "not ready within 8 seconds; last step:" in failed["failure_reason"]
    assert "starting the ssh server" in failed["failure_reason"]
    await system.released(job)
    assert await system.objects() == {kind: [] for kind in KINDS}


async def test_a_gang_dies_as_one_and_says_which_member_it_was(system: KubeSystem) -> None:
    job = await system.reserve("--gpus", "16")
    await system.api.play(f"{job['pod_name']}-1", system.namespace, "oom")
    failed = await system.until(job, "failed", seconds=10)
    assert failed["failure_reason"].startswith("member 1: it ran out of memory")
    await system.released(job)
    assert await system.objects() == {kind: [] for kind in KINDS}


async def test_a_service_that_somebody_deletes_is_made_again_and_the_dev_server_goes_on(system: KubeSystem) -> None:
    job = await system.reserve("--gpus", "1")
    pod = await system.api.get("pods", job["pod_name"], system.namespace)
    await system.api.delete("services", job["pod_name"], system.namespace)
    await eventually_async(lambda: _said(system, job, "reconnected"), "the way in did not come back", within=10)
    service = await system.api.get("services", job["pod_name"], system.namespace)
    row = await system.see(job, lambda row: row.step is None, "it is not as it was")
    assert row.connection is not None
    assert row.connection.port == service["spec"]["ports"][0]["nodePort"]
    assert (await system.pods())[job["pod_name"]]["metadata"]["uid"] == pod["metadata"]["uid"]


# --- Nodes ------------------------------------------------------------------------------------------------------


async def test_when_a_node_is_lost_those_on_it_and_those_who_wait_for_it_are_told(
    system: KubeSystem, nodes: FakeNodes
) -> None:
    first = await system.ask("reserve", "--gpus", "8", "--hours", "1", "--yes")
    others = [await system.ask("reserve", "--gpus", "8", "--hours", "5", "--yes") for _ in range(2)]
    waiting = await system.until(await system.submit("--gpus", "8"), "queued")
    lost = first["nodes"][0]["node"]
    await nodes.lose(lost)
    row = await system.see(first, lambda row: row.step is not None, "its owner is not told", seconds=10)
    assert row.step == f"node {lost} does not answer"
    shown, _ = await system.run("status", first["job_id"])
    assert f"node {lost} does not answer" in shown
    await eventually_async(lambda: _said(system, waiting, "delayed"), "the one that waits is not told", within=10)
    assert f"node {lost} was lost" in str(await _said(system, waiting, "delayed"))
    failed = await system.until(first, "failed", seconds=15)
    assert f"its node {lost} was lost" in failed["failure_reason"]
    assert [(await system.status(other))["status"] for other in others] == ["active", "active"]
    row = await system.see(first, lambda row: True, "")
    assert not row.is_released, "nobody knows whether it still runs"
    assert (await system.status(waiting))["status"] == "queued"
    await nodes.remove(lost)
    await system.api.delete("pods", first["pod_name"], system.namespace, grace=0)  # as the garbage collector does later
    await system.released(first)


async def test_a_node_that_comes_back_in_time_keeps_its_dev_server(system: KubeSystem, nodes: FakeNodes) -> None:
    job = await system.reserve("--gpus", "1")
    node = job["nodes"][0]["node"]
    await nodes.set_ready(node, False)
    await system.see(job, lambda row: row.step is not None, "its owner is not told", seconds=10)
    await nodes.set_ready(node, True)
    row = await system.see(job, lambda row: row.step is None, "it did not come back", seconds=10)
    assert row.status == "active"
    assert (await system.status(job))["ssh_command"] == job["ssh_command"]


# --- Somebody else's work ---------------------------------------------------------------------------------------


async def test_gpus_that_others_use_are_not_promised_and_are_used_once_they_are_free(
    system: KubeSystem, nodes: FakeNodes
) -> None:
    name = await occupy(system, nodes.names[0], 8)
    await eventually_async(lambda: _free(system, 16), "what others use is not seen")
    for _ in range(2):
        await system.reserve("--gpus", "8")
    waiting = await system.until(await system.submit("--gpus", "8"), "queued")
    assert waiting["eta"] is not None
    await system.api.delete("pods", name, "elsewhere")
    started = await system.until(waiting, "active")
    assert started["nodes"][0]["node"] == nodes.names[0]


async def test_who_is_overtaken_between_plan_and_start_gets_another_place(
    system: KubeSystem, nodes: FakeNodes, kube: Cluster
) -> None:
    with no_scheduler(kube):
        job = await system.until(await system.submit("--gpus", "8"), "preparing")
        taken = job["nodes"][0]["node"]
        await system.api.wait("pods", job["pod_name"], system.namespace, lambda pod: True)
        await occupy(system, taken, 1)
    started = await system.until(job, "active")
    assert started["nodes"][0]["node"] != taken
    again = next(event for event in await system.events(job) if event["kind"] == "queued")
    assert f"unmanaged use took what was free on node {taken}" in again["message"]
    await system.check_objects()


async def test_who_is_overtaken_on_the_last_node_waits_until_it_is_free(
    system: KubeSystem, nodes: FakeNodes, kube: Cluster
) -> None:
    holders = [await system.reserve("--gpus", "8") for _ in range(2)]
    with no_scheduler(kube):
        job = await system.until(await system.submit("--gpus", "8"), "preparing")
        await system.api.wait("pods", job["pod_name"], system.namespace, lambda pod: True)
        name = await occupy(system, job["nodes"][0]["node"], 4)
    await system.see(
        job,
        lambda row: row.estimate is not None and row.estimate.position == 1 and not row.shares,
        "it does not wait again",
    )
    waiting = await system.status(job)
    assert waiting["eta"]["latest"] > holders[0]["expires_at"]
    await system.check_objects()
    await system.api.delete("pods", name, "elsewhere")
    await system.until(job, "active")
    await system.check_objects()


async def test_a_node_that_was_closed_before_the_start_is_left(
    system: KubeSystem, nodes: FakeNodes, kube: Cluster
) -> None:
    with no_scheduler(kube):
        job = await system.until(await system.submit("--gpus", "16"), "preparing")
        closed = job["nodes"][1]["node"]
        await system.api.wait("pods", f"{job['pod_name']}-1", system.namespace, lambda pod: True)
        await nodes.cordon(closed)
    started = await system.until(job, "active")
    assert closed not in {share["node"] for share in started["nodes"]}
    await system.check_objects()


# --- What nobody owns -------------------------------------------------------------------------------------------


async def test_what_has_no_owner_is_reported_counted_as_used_and_removed_after_a_while(
    system: KubeSystem, nodes: FakeNodes
) -> None:
    job = await system.reserve("--gpus", "1")
    stray = await copy_as(system, job, str(uuid.uuid4()), f"gpu-dev-{uuid.uuid4().hex[:8]}")
    await eventually_async(lambda: _free(system, 24 - 2), "what it uses is not counted")
    assert "orphan.found" in system.log(200)
    for kind in ("pods", "services", "secrets"):
        await system.api.wait_gone(kind, stray, system.namespace)
    assert (await system.status(job))["status"] == "active"
    await system.check_objects()


async def test_what_carries_another_reservations_id_is_never_touched(system: KubeSystem, nodes: FakeNodes) -> None:
    holders = [await system.reserve("--gpus", "8") for _ in range(3)]
    waiting = await system.until(await system.submit("--gpus", "8"), "queued")
    secret = await system.api.get("secrets", holders[0]["pod_name"], system.namespace)
    taken = await system.api.create("secrets", renamed(secret, waiting["pod_name"]), system.namespace)
    await system.run("cancel", holders[1]["job_id"], "--yes")
    failed = await system.until(waiting, "failed")
    assert "does not belong to this reservation and was not changed" in failed["failure_reason"]
    await system.released(waiting)
    kept = await system.api.get("secrets", waiting["pod_name"], system.namespace)
    assert kept["metadata"]["uid"] == taken["metadata"]["uid"]
    assert kept["data"] == secret["data"]
    assert await system.api.find("pods", waiting["pod_name"], system.namespace) is None
    letters = await _dead_letters(system)
    assert waiting["job_id"] in letters


# --- Helpers ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_scheduler(kube: Cluster) -> Iterator[None]:
    """What is planned meanwhile stays a plan; then one comes that knows all there is."""
    if not isinstance(kube, ControlPlane):
        pytest.skip("NOT TESTED: the scheduler of somebody else's cluster cannot be stopped")
    kube.kill_scheduler()
    try:
        yield
    finally:
        kube.start_scheduler()


async def occupy(system: KubeSystem, node: str, gpus: int) -> str:
    """Somebody else's pod, already there."""
    name = f"theirs-{uuid.uuid4().hex[:6]}"
    container = {"name": "work", "image": "theirs", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    pod = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
    await system.api.create("pods", pod, "elsewhere")
    return name


async def copy_as(system: KubeSystem, job: Job, owner: str, name: str) -> str:
    """The objects of a dev server once more, as those of a reservation that is nowhere."""
    for kind in ("secrets", "services", "pods"):
        one = await system.api.get(kind, job["pod_name"], system.namespace)
        copy = renamed(one, name)
        copy["metadata"]["labels"]["gpu-dev/reservation-id"] = owner
        if kind == "services":
            copy["spec"] = {"type": "NodePort", "ports": [{"port": 22}], "selector": {"nobody": "here"}}
        if kind == "pods":
            copy["spec"].pop("serviceAccountName", None)
        await system.api.create(kind, copy, system.namespace)
    return name


def renamed(one: Object, name: str) -> Object:
    kept = {key: value for key, value in one.items() if key not in ("status", "metadata")}
    metadata = {key: dict(one["metadata"].get(key, {})) for key in ("labels", "annotations")}
    return {**kept, "metadata": {"name": name, **metadata}}


async def _said(system: KubeSystem, job: Job, kind: str) -> str | None:
    told = [event["message"] for event in await system.events(job) if event["kind"] == kind]
    return told[-1] if told else None


async def _free(system: KubeSystem, gpus: int) -> bool | None:
    rows = {row["gpu_type"]: row["available_gpus"] for row in (await system.ask("avail"))["gpu_types"]}
    return rows.get("h100") == gpus or None


async def _dead_letters(system: KubeSystem) -> str:
    return (await asyncio.to_thread(system.people.server, "queue", "show", "gpu_reservations_dlq", "--json")).stdout
