"""GPUs that somebody uses without a reservation: they are not ours to give away.

Looks in a thread, at most every few seconds, and answers with what it last saw.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from gpudev.adapters.local.machine import nvml
from gpudev.adapters.local.machine.nodes import LocalNodes
from gpudev.adapters.local.machine.processes import descends_from
from gpudev.domain.errors import Unavailable

_REFRESH_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class UnmanagedUse:
    indices: dict[str, frozenset[int]] = field(default_factory=dict)
    """By node: the GPUs, by their numbers on the node, that foreign processes compute on."""
    driver_answers: bool = True


@dataclass(frozen=True, slots=True)
class ManagedUse:
    pids: frozenset[int]
    """The dev servers' first processes; all below them are ours."""
    gpus: frozenset[tuple[str, int]]
    """What they hold, by node and number."""


class UnmanagedUseWatch:
    """`own` tells what our dev servers use. `changed` is called on the loop."""

    def __init__(self, nodes: LocalNodes, own: Callable[[], ManagedUse], changed: Callable[[], None]) -> None:
        self._nodes = nodes
        self._managed = own
        self._changed = changed
        self._latest = UnmanagedUse()
        self._refreshed_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def latest(self) -> UnmanagedUse:
        return self._latest

    def refresh(self) -> "asyncio.Task[None] | None":
        """Look again if it is time, without waiting for the answer."""
        if not self._nodes.has_real_gpus:
            return None
        if self._refreshing is None and time.monotonic() - self._refreshed_at >= _REFRESH_EVERY_S:
            self._refreshing = asyncio.create_task(self._refresh_now())
        return self._refreshing

    def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _refresh_now(self) -> None:
        try:
            seen = await asyncio.to_thread(find_unmanaged_use, self._nodes, self._managed())
        finally:
            self._refreshed_at = time.monotonic()
            self._refreshing = None
        if seen != self._latest:
            self._latest = seen
            self._changed()


def find_unmanaged_use(nodes: LocalNodes, own: ManagedUse) -> UnmanagedUse:
    try:
        pids = nvml.computing_pids()
    except Unavailable:
        return UnmanagedUse(driver_answers=False)
    return UnmanagedUse(
        {
            node.name: frozenset(
                number
                for number, index in enumerate(node.nvml)
                if any(_is_unmanaged(pid, own, (node.name, number) in own.gpus) for pid in pids.get(index, ()))
            )
            for node in nodes.nodes
        }
    )


def _is_unmanaged(pid: int, own: ManagedUse, is_held: bool) -> bool:
    """In a container the driver may tell pids that do not exist here; on a GPU that a dev server holds, such a one
    is taken for the dev server's."""
    return not descends_from(pid, own.pids) and not (is_held and not psutil.pid_exists(pid))
