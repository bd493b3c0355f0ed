"""A dev server on this machine is what people expect behind an ssh command."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.shell_contract import ShellContract, SshAccess
from gpudev.ports.clock import SystemClock
from support.local.local_world import ONLY_LINUX, LocalWorld


@pytest.mark.slow
@ONLY_LINUX  # elsewhere people come as whoever started it, to a folder of the machine's
class TestLocalShell(ShellContract):
    @pytest.fixture
    async def access(self, tmp_path: Path) -> AsyncIterator[SshAccess]:
        async with LocalWorld(SystemClock(), mode=None) as world:  # as this machine keeps them apart
            seen = await world.ready(world.spec())
            assert seen.connection is not None
            yield await SshAccess(seen.connection, world.key, tmp_path).arrive()
