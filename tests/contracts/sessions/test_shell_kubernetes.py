"""A dev server on a real Kubernetes node is what people expect behind an ssh command."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts.shell_contract import ShellContract, SshAccess
from gpudev.domain.reservations.reservation import SshEndpoint
from support.kubernetes.api import KubeApi
from support.kubernetes.real_node import RealNode
from support.kubernetes.real_node_world import RealWorld

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def reached(furnished_node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SshEndpoint, Path]]:
    """One dev server for all of them, which do not meet in it; and the key to it."""
    namespace, folder = f"test-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("shell")
    with ThreadPoolExecutor(1) as apart:  # from the tests' own event loops
        yield apart.submit(asyncio.run, start_one(furnished_node, namespace, folder)).result()
        apart.submit(asyncio.run, forget(furnished_node, namespace)).result()


class TestShellOnARealNode(ShellContract):
    @pytest.fixture
    async def access(self, reached: tuple[SshEndpoint, Path], tmp_path: Path) -> AsyncIterator[SshAccess]:
        yield await SshAccess(*reached, tmp_path).arrive()


async def start_one(node: RealNode, namespace: str, folder: Path) -> tuple[SshEndpoint, Path]:
    api = await KubeApi.connect(node.plane.kubeconfig)
    await api.create("namespaces", {"metadata": {"name": namespace}})
    await api.close()
    async with RealWorld(node, namespace, folder) as world:
        seen = await world.ready(world.spec())
        assert seen.connection is not None
        return seen.connection, world.key


async def forget(node: RealNode, namespace: str) -> None:
    """Soon: nobody waits for it."""
    api = await KubeApi.connect(node.plane.kubeconfig)
    await api.delete("namespaces", namespace)
    await api.close()
