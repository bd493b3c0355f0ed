"""Folders keep what every cloud promises."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.cloud_contract import CloudDisksContract, CloudViewContract
from support.clock import ManualClock
from support.local.volume_world import VolumeWorld


class _OnFolders:
    @pytest.fixture
    async def world(self, tmp_path: Path, clock: ManualClock) -> AsyncIterator[VolumeWorld]:
        world = VolumeWorld(tmp_path / "state", clock)
        await world.cloud.start()
        yield world
        await world.cloud.close()


class TestView(_OnFolders, CloudViewContract):
    pass


class TestDisks(_OnFolders, CloudDisksContract):
    pass
