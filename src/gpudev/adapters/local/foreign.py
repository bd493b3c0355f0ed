"""GPUs that somebody uses without a reservation: they are not ours to give away.

Looks in a thread, at most every few seconds, and answers with what it last saw.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpudev.adapters.local import nvml
from gpudev.adapters.local.nodes import LocalNode, LocalNodes
from gpudev.adapters.local.processes import descends_from
from gpudev.domain.errors import Unavailable

_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class ForeignUse:
    indices: dict[str, frozenset[int]] = field(default_factory=dict)
    """By node: the GPUs, by their numbers on the node, that foreign processes compute on."""
    driver_answers: bool = True


class ForeignWatch:
    """`own_pids` tells the dev servers' first processes; all below them are ours. `changed` is called on the loop."""

    def __init__(self, nodes: LocalNodes, own_pids: Callable[[], frozenset[int]], changed: Callable[[], None]) -> None:
        self._nodes = nodes
        self._own_pids = own_pids
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
            seen = await asyncio.to_thread(look, self._nodes, self._own_pids())
        finally:
            self._looked_at = time.monotonic()
            self._looking = None
        if seen != self._seen:
            self._seen = seen
            self._changed()


def look(nodes: LocalNodes, own_pids: frozenset[int]) -> ForeignUse:
    try:
        pids = nvml.computing_pids()
    except Unavailable:
        return ForeignUse(driver_answers=False)
    foreign = {index for index, users in pids.items() if any(not descends_from(pid, own_pids) for pid in users)}
    return ForeignUse({node.name: _on(node, foreign) for node in nodes.nodes})


def _on(node: LocalNode, foreign: set[int]) -> frozenset[int]:
    return frozenset(number for number, index in enumerate(node.nvml) if index in foreign)
