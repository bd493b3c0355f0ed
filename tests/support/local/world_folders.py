"""Folders for local worlds, each with the warm process of the world that was there before.

Starting a warm process costs half a second of computing, which is most of what a test of this folder costs. It knows
nothing of the world it serves but the path of its folder and how dev servers are kept apart, so the next world of that
kind gets both. Whoever kills it, or closes the cluster on the way, takes it from nobody: the next world starts one.
"""

import asyncio
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.network.own_networks import remove_own_networks
from gpudev.adapters.local.servers.zygote_client import ZygoteClient, _RunningZygote


def new_folder() -> Path:
    """Not one of pytest's: an own uid must be able to pass through, and it cannot through those."""
    return Path(tempfile.mkdtemp(prefix="gpu-dev-test-"))


class Place:
    def __init__(self) -> None:
        self.folder = new_folder()
        self._warm: _RunningZygote | None = None

    @property
    def warm_pid(self) -> int | None:
        return None if self._warm is None else self._warm.process.pid

    def lend(self, cluster: LocalCluster) -> None:
        """Before it starts. A process that has died meanwhile is no use to anybody."""
        running, self._warm = self._warm, None
        if running is not None and running.process.poll() is None:
            theirs: ZygoteClient = cluster._zygote
            theirs._running = running
            theirs._restarting = asyncio.create_task(theirs._restart_after(running.process))
        elif running is not None:
            running.control.close()

    def take_back(self, cluster: LocalCluster) -> None:
        """Before it is closed, which would end the process."""
        self._warm, cluster._zygote._running = cluster._zygote._running, None

    def close(self) -> None:
        remove_own_networks(self.folder / "state")
        if self._warm is not None:
            self._warm.control.close()  # which ends it
            try:
                self._warm.process.wait(10)
            except subprocess.TimeoutExpired:
                self._warm.process.kill()
                self._warm.process.wait()


class Places:
    def __init__(self) -> None:
        self._free: dict[IsolationMode | None, list[Place]] = defaultdict(list)

    def take(self, mode: IsolationMode | None) -> Place:
        if not self._free[mode]:
            return Place()
        place = self._free[mode].pop()
        place.folder.mkdir()
        return place

    def give_back(self, mode: IsolationMode | None, place: Place) -> None:
        """Its folder is gone, with all that was in it."""
        self._free[mode].append(place)

    def close(self) -> None:
        for places in self._free.values():
            for place in places:
                place.close()


PLACES = Places()
"""Of this test process."""
