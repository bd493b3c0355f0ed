"""A real Kubernetes for the tests: one control plane per test process, with a namespace and nodes per test.

The system under test looks at all nodes and pods of its cluster, so two tests never share one at the same time: each
test process has its own (GPU_DEV_TEST_KUBECONFIG: all use that cluster, one after the other). Tests that break the
control plane itself take `own_control_plane`.
"""

import asyncio
import fcntl
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from devserver.program import CannotCompile, compiled_program
from kubernetes.real_world import import_dev_server
from support.kube import Cluster, ControlPlane, ExistingCluster
from support.kube_api import KubeApi
from support.kube_binaries import find_binaries
from support.kube_node import RealNode, why_not
from support.kube_nodes import FakeNodes


@pytest.fixture(scope="session")
def kube_binaries() -> Path:
    found = find_binaries()
    if found is None:
        pytest.skip("NO KUBERNETES TO TEST WITH: `make kube` builds one (ten minutes, once)")
    return found


@pytest.fixture(scope="session")
def kube(kube_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kube")
    named = os.environ.get("GPU_DEV_TEST_KUBECONFIG")
    with ExistingCluster(folder, Path(named)) if named else ControlPlane(folder) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def control_plane_of_the_module(
    kube_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("own") / "kube") as plane:
        yield plane


@pytest.fixture
def own_control_plane(control_plane_of_the_module: ControlPlane) -> ControlPlane:
    """To be killed, restarted and lied to, one test of a module after the other: what they make has names of its own,
    for it stays. It runs, whatever the test before has done to it."""
    if "apiserver" not in control_plane_of_the_module.pids():
        control_plane_of_the_module.start_apiserver()
    return control_plane_of_the_module


@pytest.fixture
async def kube_api(kube: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeApi]:
    """The tests' own client, as admin. Whoever holds it is alone on the cluster."""
    shared = tmp_path_factory.getbasetemp().parent if isinstance(kube, ExistingCluster) else kube.folder
    with (shared / "kube-in-use.lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        api = await KubeApi.connect(kube.kubeconfig)
        yield api
        await api.close()


@pytest.fixture
async def namespace(kube_api: KubeApi) -> AsyncIterator[str]:
    """A fresh one; its pods are gone when the test ends, the rest of it soon after."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await kube_api.create("namespaces", {"metadata": {"name": name}})
    yield name
    for pod in await kube_api.list("pods", name):
        await kube_api.delete("pods", pod["metadata"]["name"], name, grace=0)
    await kube_api.delete("namespaces", name)


@pytest.fixture
async def fake_nodes(kube: Cluster, kube_api: KubeApi) -> AsyncIterator[FakeNodes]:
    """Adds nodes under names nobody else uses; all are gone when the test ends."""
    nodes = FakeNodes(kube_api, kube.node_mark, kwok_port=kube.kwok_port, suffix=f"-{uuid.uuid4().hex[:6]}")
    yield nodes
    await nodes.remove_all()


@pytest.fixture(scope="session")
def real_node(kube_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """One on which pods really run, with a control plane (`real_node.plane`) of its own."""
    if reason := why_not():
        pytest.skip(f"NO REAL NODE TO TEST WITH: {reason}")
    folder = tmp_path_factory.mktemp("n")  # the kubelet's sockets lie deep below it, and their paths must be short
    with ControlPlane(folder / "kube") as plane, RealNode(plane, folder / "node") as node:
        asyncio.run(_welcome(node))
        yield node


async def _welcome(node: RealNode) -> None:
    api = await KubeApi.connect(node.plane.kubeconfig)
    await node.ready(api)
    await api.close()


@pytest.fixture
async def real_api(real_node: RealNode) -> AsyncIterator[KubeApi]:
    api = await KubeApi.connect(real_node.plane.kubeconfig)
    yield api
    await api.close()


@pytest.fixture
async def real_namespace(real_api: KubeApi) -> AsyncIterator[str]:
    """A fresh one; its pods end soon after the test does, while the next one begins: a node has room for both."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await real_api.create("namespaces", {"metadata": {"name": name}})
    yield name
    for pod in await real_api.list("pods", name):
        await real_api.delete("pods", pod["metadata"]["name"], name, grace=1)
    await real_api.delete("namespaces", name)


@pytest.fixture(scope="session")
def furnished_node(real_node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    try:
        program = compiled_program()
    except CannotCompile as error:
        pytest.skip(f"NOT TESTED: the dev server's program cannot be compiled: {error}")
    import_dev_server(real_node, program, tmp_path_factory.mktemp("dev-server"))
    yield real_node
