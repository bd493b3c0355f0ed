"""The node on which pods really run: they start, answer through a NodePort, and leave nothing behind."""

import asyncio
import subprocess
from pathlib import Path

import psutil
import pytest

from support.kubernetes.api import KubeApi, Object, is_ready
from support.kubernetes.control_plane import ControlPlane
from support.kubernetes.images import DEV_IMAGE, pause_program, write_image
from support.kubernetes.real_node import RealNode, why_not
from support.polling import eventually, until_it_succeeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ANSWERS = """\
import socket
server = socket.create_server(("", 22))
print("listening", flush=True)
while True:
    caller, _ = server.accept()
    caller.sendall(open("/secret/word", "rb").read())
    caller.close()
"""


def pod(name: str, image: str, command: list[str], **more: object) -> Object:
    limits = {"limits": {"nvidia.com/gpu": "2"}}
    container = {"name": "dev", "image": image, "imagePullPolicy": "Never", "command": command, "resources": limits}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{**container, **more}]}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


async def call(address: str, port: int) -> bytes:
    """kube-proxy learns of a new service through a watch of its own."""
    reader, writer = await until_it_succeeds(lambda: asyncio.open_connection(address, port), OSError)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_pod_runs_and_answers_through_its_node_port(
    real_node: RealNode, real_api: KubeApi, real_namespace: str
) -> None:
    secret = {"metadata": {"name": "word"}, "stringData": {"word": "sesame"}}
    await real_api.create("secrets", secret, real_namespace)
    manifest = pod(
        "a",
        DEV_IMAGE,
        ["python3", "-c", ANSWERS],
        readinessProbe={"tcpSocket": {"port": 22}, "periodSeconds": 1},
        volumeMounts=[{"name": "word", "mountPath": "/secret"}],
    )
    manifest["spec"]["volumes"] = [{"name": "word", "secret": {"secretName": "word"}}]
    await real_api.create("pods", manifest, real_namespace)
    service: Object = {
        "metadata": {"name": "a"},
        "spec": {"type": "NodePort", "selector": {"app": "a"}, "ports": [{"port": 22}]},
    }
    port = (await real_api.create("services", service, real_namespace))["spec"]["ports"][0]["nodePort"]
    placed = await real_api.wait("pods", "a", real_namespace, is_ready, seconds=60)
    assert placed["spec"]["nodeName"] == real_node.name
    assert await call(real_node.address, port) == b"sesame"
    assert await real_api.log("a", real_namespace) == "listening\n"
    assert (await real_api.get("nodes", real_node.name))["status"]["allocatable"]["nvidia.com/gpu"] == "8"


async def test_an_image_made_of_one_static_program_runs(
    real_node: RealNode, real_api: KubeApi, real_namespace: str, tmp_path: Path
) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "program").write_bytes(pause_program().read_bytes())
    (folder / "program").chmod(0o755)
    real_node.import_image(write_image(folder, tmp_path / "one.tar", name="example.test/one:1", command=["/program"]))
    await real_api.create("pods", pod("a", "example.test/one:1", ["/program"]), real_namespace)
    await real_api.wait("pods", "a", real_namespace, is_ready, seconds=60)


async def test_a_program_that_uses_too_much_memory_is_killed_and_the_pod_says_so(
    real_api: KubeApi, real_namespace: str
) -> None:
    manifest = pod("a", DEV_IMAGE, ["python3", "-c", "print(len(bytearray(10**9)))"])
    manifest["spec"]["containers"][0]["resources"]["limits"]["memory"] = "64Mi"
    await real_api.create("pods", manifest, real_namespace)
    ended = await real_api.wait(
        "pods", "a", real_namespace, lambda seen: seen["status"]["phase"] == "Failed", seconds=60
    )
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


async def test_a_stopped_node_leaves_no_process_mount_cable_or_control_group(
    kube_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if reason := why_not():
        pytest.skip(f"NO REAL NODE TO TEST WITH: {reason}")
    folder = tmp_path_factory.mktemp("n")  # the kubelet's sockets lie deep below it, and their paths must be short
    with ControlPlane(folder / "kube") as plane, RealNode(plane, folder / "node") as node:
        api = await KubeApi.connect(plane.kubeconfig)
        await node.ready(api)
        await api.create("pods", pod("a", DEV_IMAGE, ["sleep", "12345"]), "default")
        await api.wait("pods", "a", "default", is_ready, seconds=180)
        await api.close()
        during = traces(folder, node)
    assert during.pop("mounts") == [], "they are seen in the node's own namespace only"
    assert all(during.values()), during
    # The kernel takes a cable away a moment after the last process of its namespace.
    eventually(lambda: not any(traces(folder, node).values()), lambda: traces(folder, node), within=20)


def traces(folder: Path, node: RealNode) -> dict[str, list[str]]:
    """What a node could leave on this machine. Others may run at the same time: only this one's counts."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    groups = Path("/sys/fs/cgroup")
    return {
        "processes": [" ".join(words) for words in commands if str(folder) in " ".join(words)],
        "pods": [" ".join(words) for words in commands if words == ["sleep", "12345"]],
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line],
        "cables": [link for link in links if node.cable in link],
        "control groups": [str(path) for depth in ("", "*/") for path in groups.glob(f"{depth}{node.control_group}")],
    }
