"""What the other tests here stand on: the control plane starts, breaks as told and goes without a trace."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from support.kubernetes.api import KubeApi, KubeRefused, Object, is_ready
from support.kubernetes.bad_line import CuttingProxy
from support.kubernetes.control_plane import ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.paths import TESTS
from support.polling import eventually, until_it_succeeds

pytestmark = pytest.mark.slow


def unique() -> str:
    """For the names of what stays when its test has ended, also after a first try."""
    return f"-{uuid.uuid4().hex[:6]}"


def pod(name: str, *, image: str = "example.test/dev:1", gpus: int = 1) -> Object:
    container = {"name": "dev", "image": image, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"restartPolicy": "Never", "initContainers": [{"name": "setup", "image": "example.test/setup:1"}]}
    return {"metadata": {"name": name}, "spec": {**spec, "containers": [container]}}


async def test_a_pod_with_gpus_runs_on_a_fake_node_and_can_be_reached(
    kube_api: KubeApi, namespace: str, fake_nodes: FakeNodes
) -> None:
    node = await fake_nodes.add("n", gpus=8, gpu_type="h100")
    await kube_api.create("pods", pod("a", gpus=8), namespace)
    await kube_api.create("pods", pod("too-many"), namespace)
    ready = await kube_api.wait("pods", "a", namespace, is_ready)
    assert ready["spec"]["nodeName"] == node
    assert ready["status"]["phase"] == "Running"
    assert ready["status"]["podIP"].startswith("10.")
    assert ready["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert ready["status"]["containerStatuses"][0]["ready"] is True
    unplaced = await kube_api.wait("pods", "too-many", namespace, lambda seen: bool(seen["status"].get("conditions")))
    assert unplaced["status"]["conditions"][0]["reason"] == "Unschedulable"
    await kube_api.delete("pods", "a", namespace)
    await kube_api.wait_gone("pods", "a", namespace)


FAULTS: dict[str, Any] = {
    "crash:3": lambda status: _state(status, "terminated").get("exitCode") == 3 and status["phase"] == "Failed",
    "oom": lambda status: _state(status, "terminated").get("reason") == "OOMKilled",
    "init-crash:4": lambda status: _state(status, "terminated", "initContainerStatuses").get("exitCode") == 4,
    "pull-error": lambda status: _state(status, "waiting").get("reason") == "ImagePullBackOff",
    "evicted": lambda status: status.get("reason") == "Evicted" and status["phase"] == "Failed",
    "never-ready": lambda status: bool(_state(status, "running")) and not is_ready({"status": status}),
}


def _state(status: Object, state: str, kind: str = "containerStatuses") -> Object:
    found: Object = status.get(kind, [{"state": {}}])[0]["state"].get(state) or {}
    return found


@pytest.mark.parametrize("play", FAULTS)
async def test_a_pod_plays_the_fault_its_image_names(
    kube_api: KubeApi, namespace: str, fake_nodes: FakeNodes, play: str
) -> None:
    await fake_nodes.add("n")
    await kube_api.create("pods", pod("a", image=f"play.test/{play}"), namespace)
    await kube_api.wait("pods", "a", namespace, lambda seen: FAULTS[play](seen["status"]))


@pytest.mark.parametrize("play", ["crash:3", "oom", "evicted"])
async def test_a_running_pod_dies_when_it_is_told_to(
    kube_api: KubeApi, namespace: str, fake_nodes: FakeNodes, play: str
) -> None:
    await fake_nodes.add("n")
    await kube_api.create("pods", pod("a"), namespace)
    await kube_api.wait("pods", "a", namespace, is_ready)
    await kube_api.play("a", namespace, play)
    await kube_api.wait("pods", "a", namespace, lambda seen: FAULTS[play](seen["status"]))


async def test_a_slow_start_shows_every_step(kube_api: KubeApi, namespace: str, fake_nodes: FakeNodes) -> None:
    await fake_nodes.add("n")
    await kube_api.create("pods", pod("a", image="play.test/slow:300ms"), namespace)
    steps: list[str] = []

    def note(seen: Object) -> bool:
        init = _state(seen["status"], "terminated", "initContainerStatuses")
        step = (
            f"{seen['status']['phase']}, {'set up' if init else 'not set up'}, {'' if is_ready(seen) else 'not '}ready"
        )
        if not steps or steps[-1] != step:
            steps.append(step)
        return is_ready(seen)

    await kube_api.wait("pods", "a", namespace, note)
    assert steps[-3:] == ["Pending, set up, not ready", "Running, set up, not ready", "Running, set up, ready"]
    assert "Pending, not set up, not ready" in steps


async def test_a_lost_node_is_tainted_and_its_pods_stay_where_nobody_can_end_them(
    kube_api: KubeApi, namespace: str, fake_nodes: FakeNodes
) -> None:
    node = await fake_nodes.add("n")
    await kube_api.create("pods", pod("a"), namespace)
    await kube_api.wait("pods", "a", namespace, is_ready)
    await fake_nodes.lose(node)
    await kube_api.wait("nodes", node, None, lambda seen: bool(seen["spec"].get("taints")))
    await kube_api.wait("pods", "a", namespace, lambda seen: not is_ready(seen))
    await kube_api.delete("pods", "a", namespace)
    stuck = await kube_api.wait("pods", "a", namespace, lambda seen: "deletionTimestamp" in seen["metadata"])
    assert stuck["status"]["phase"] == "Running"


async def test_cordons_taints_and_broken_gpus_show_on_the_node(kube_api: KubeApi, fake_nodes: FakeNodes) -> None:
    node = await fake_nodes.add("n", taints=[{"key": "team", "effect": "NoSchedule", "value": "x"}])
    await fake_nodes.cordon(node)
    await fake_nodes.taint(node, "repair")
    await fake_nodes.untaint(node, "team")
    await fake_nodes.set_gpus(node, 7)
    await fake_nodes.set_ready(node, False)
    seen = await kube_api.get("nodes", node)
    keys = {taint["key"] for taint in seen["spec"]["taints"]}
    assert seen["spec"]["unschedulable"] is True
    assert "repair" in keys
    assert "team" not in keys
    assert (seen["status"]["capacity"]["nvidia.com/gpu"], seen["status"]["allocatable"]["nvidia.com/gpu"]) == ("8", "7")
    assert not is_ready(seen)


async def test_what_containers_logged_can_be_read(own_control_plane: ControlPlane) -> None:
    own_control_plane.set_pod_log("first line\nlast line\n")
    api = await KubeApi.connect(own_control_plane.kubeconfig)
    nodes = FakeNodes(api, own_control_plane.node_mark, kwok_port=own_control_plane.kwok_port, suffix=unique())
    await nodes.add("logging")
    logged = f"logged{unique()}"
    await api.create("pods", pod(logged), "default")
    await api.wait("pods", logged, "default", is_ready)
    assert await api.log(logged, "default", "dev") == "first line\nlast line\n"
    await api.close()


async def test_an_api_server_that_was_killed_comes_back_with_everything(own_control_plane: ControlPlane) -> None:
    api = await KubeApi.connect(own_control_plane.kubeconfig)
    nodes = FakeNodes(api, own_control_plane.node_mark, suffix=unique())
    node = await nodes.add("outliving")
    await asyncio.to_thread(own_control_plane.kill_apiserver)
    with pytest.raises(httpx2.TransportError):
        await api.get("nodes", node)
    await asyncio.to_thread(own_control_plane.start_apiserver)
    assert (await api.get("nodes", node))["metadata"]["name"] == node
    later = f"later{unique()}"
    await api.create("pods", pod(later), "default")
    await api.wait("pods", later, "default", is_ready, seconds=60)
    await api.close()


async def test_forgotten_history_cannot_be_watched_from(own_control_plane: ControlPlane) -> None:
    api = await KubeApi.connect(own_control_plane.kubeconfig)
    before = (await api.get("namespaces", "default"))["metadata"]["resourceVersion"]
    await FakeNodes(api, own_control_plane.node_mark, suffix=unique()).add("forgotten")
    await asyncio.to_thread(own_control_plane.forget_history)
    with pytest.raises(KubeRefused, match="410"):
        async for _ in api.watch("nodes", resource_version=before):
            pytest.fail("a watch went on from a version that is gone")
    await api.close()


async def test_a_service_account_may_do_nothing_it_was_not_given(own_control_plane: ControlPlane) -> None:
    admin = await KubeApi.connect(own_control_plane.kubeconfig)
    name, role = f"somebody{unique()}", f"lister{unique()}"
    token = await admin.service_account_token(name, "default")
    somebody = await KubeApi.connect(own_control_plane.kubeconfig_with(token=token))
    with pytest.raises(KubeRefused, match="403"):
        await somebody.list("pods", "default")
    may_list = {
        "metadata": {"name": role},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    }
    await admin.create("roles", may_list, "default")
    binding: Object = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }
    await admin.create("rolebindings", binding, "default")
    assert _names(await _eventually_lists(somebody)) == _names(await admin.list("pods", "default"))
    await somebody.close()
    await admin.close()


def _names(objects: list[Object]) -> set[str]:
    return {one["metadata"]["name"] for one in objects}


async def _eventually_lists(api: KubeApi) -> list[Object]:
    """The authorizer learns of a new binding through a watch of its own."""
    return await until_it_succeeds(lambda: api.list("pods", "default"), KubeRefused)


async def test_a_bad_line_breaks_watches_and_falls_silent_when_told(own_control_plane: ControlPlane) -> None:
    async with CuttingProxy(own_control_plane.port, every=0.5) as line:
        api = await KubeApi.connect(own_control_plane.kubeconfig_with(server=line.url))
        with pytest.raises(httpx2.TransportError):
            async for _ in api.watch("nodes"):
                pass
        assert line.cuts > 0
        await api.close()
    async with CuttingProxy(own_control_plane.port) as line:
        api = await KubeApi.connect(own_control_plane.kubeconfig_with(server=line.url))
        there = _names(await api.list("nodes"))
        line.fall_silent()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await api.list("nodes")
        line.speak_again()
        assert _names(await api.list("nodes")) == there
        await api.close()


def test_a_stopped_control_plane_leaves_no_process(kube_binaries: Path, tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "kube") as plane:
        assert {"etcd", "apiserver", "controller-manager", "scheduler", "kwok"} <= plane.pids().keys()
        assert len(_processes_of(tmp_path)) > 5  # and the reaper
    assert _processes_of(tmp_path) == []


def test_a_control_plane_dies_with_a_test_that_was_killed(kube_binaries: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from support.kubernetes.control_plane import ControlPlane\n"
        "plane = ControlPlane(Path(sys.argv[1])).start()\n"
        "print('up', flush=True); time.sleep(600)"
    )
    tests = str(TESTS)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "kube")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": tests},
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        noted = json.loads((tmp_path / "kube" / "apiserver.pid").read_text())["pid"]
        assert psutil.pid_exists(noted)
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not _processes_of(tmp_path), lambda: _processes_of(tmp_path))


def _processes_of(folder: Path) -> list[str]:
    """Whatever works in the folder or was told of it."""
    found = []
    for process in psutil.process_iter():
        try:
            told = process.cwd().startswith(str(folder)) or any(str(folder) in word for word in process.cmdline())
        except psutil.Error:
            continue
        if told and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
            found.append(" ".join(process.cmdline()))
    return found
