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

_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class ForeignUse:
    indices: dict[str, frozenset[int]] = field(default_factory=dict)
    """By node: the GPUs, by their numbers on the node, that foreign processes compute on."""
    driver_answers: bool = True


@dataclass(frozen=True, slots=True)
class OwnUse:
    pids: frozenset[int]
    """The dev servers' first processes; all below them are ours."""
    gpus: frozenset[tuple[str, int]]
    """What they hold, by node and number."""


class ForeignWatch:
    """`own` tells what our dev servers use. `changed` is called on the loop."""

    def __init__(self, nodes: LocalNodes, own: Callable[[], OwnUse], changed: Callable[[], None]) -> None:
        self._nodes = nodes
        self._own = own
        self._changed = changed
        self._seen = ForeignUse()
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    @property
    def seen(self) -> ForeignUse:
        return self._seen

    def refresh(self) -> "asyncio.Task[None] | None":
        """Look again if it is time, without waiting for the answer."""
        if not self._nodes.has_real_gpus:
            return None
        if self._looking is None and time.monotonic() - self._looked_at >= _EVERY_S:
            self._looking = asyncio.create_task(self._look())
        return self._looking

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        try:
            seen = await asyncio.to_thread(look, self._nodes, self._own())
        finally:
            self._looked_at = time.monotonic()
            self._looking = None
        if seen != self._seen:
            self._seen = seen
            self._changed()


def look(nodes: LocalNodes, own: OwnUse) -> ForeignUse:
    try:
        pids = nvml.computing_pids()
    except Unavailable:
        return ForeignUse(driver_answers=False)
    return ForeignUse(
        {
            node.name: frozenset(
                number
                for number, index in enumerate(node.nvml)
                if any(_is_foreign(pid, own, (node.name, number) in own.gpus) for pid in pids.get(index, ()))
            )
            for node in nodes.nodes
        }
    )


def _is_foreign(pid: int, own: OwnUse, is_held: bool) -> bool:
    """In a container the driver may tell pids that do not exist here; on a GPU that a dev server holds, such a one
    is taken for the dev server's."""
    return not descends_from(pid, own.pids) and not (is_held and not psutil.pid_exists(pid))
