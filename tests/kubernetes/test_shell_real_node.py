"""A dev server on a real Kubernetes node is what people expect behind an ssh command."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.shell_contract import Door, ShellContract
from kubernetes.real_world import RealWorld
from support.kube_node import RealNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class TestShellOnARealNode(ShellContract):
    @pytest.fixture
    async def door(self, furnished_node: RealNode, real_namespace: str, tmp_path: Path) -> AsyncIterator[Door]:
        async with RealWorld(furnished_node, real_namespace, tmp_path) as world:
            spec = world.spec()
            seen = await world.ready(spec)
            assert seen.connection is not None
            yield await Door(seen.connection, world.key, tmp_path).arrive()
            await world.gone(spec.reservation_id)
