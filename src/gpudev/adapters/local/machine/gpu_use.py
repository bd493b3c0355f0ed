"""Use of this machine's GPUs, from the driver: utilization, and use without a reservation."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import psutil

from gpudev.adapters.local.machine import nvml
from gpudev.adapters.local.machine.nodes import LocalNodes
from gpudev.adapters.local.machine.nvml import measure_gpus
from gpudev.adapters.local.machine.processes import descends_from
from gpudev.domain.cluster import GpuUse
from gpudev.domain.errors import Unavailable
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock

_REFRESH_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class UnmanagedUse:
    indices: dict[str, frozenset[int]] = field(default_factory=dict)
    """By node: the GPUs, by their numbers on the node, on which unmanaged processes compute."""
    driver_answers: bool = True


@dataclass(frozen=True, slots=True)
class ManagedUse:
    pids: frozenset[int]
    """The dev servers' first processes. All their descendants are managed too."""
    gpus: frozenset[tuple[str, int]]
    """The GPUs that dev servers hold, by node and number."""


class UnmanagedUseWatch:
    """`managed` returns what our dev servers use. `changed` is called on the event loop."""

    def __init__(self, nodes: LocalNodes, managed: Callable[[], ManagedUse], changed: Callable[[], None]) -> None:
        self._nodes = nodes
        self._managed = managed
        self._changed = changed
        self._latest = UnmanagedUse()
        self._refreshed_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def latest(self) -> UnmanagedUse:
        return self._latest

    def refresh(self) -> "asyncio.Task[None] | None":
        """Start a query of the driver if the last result is old. Does not wait for it. None: no query is running."""
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
            found = await asyncio.to_thread(find_unmanaged_use, self._nodes, self._managed())
        finally:
            self._refreshed_at = time.monotonic()
            self._refreshing = None
        if found != self._latest:
            self._latest = found
            self._changed()


def find_unmanaged_use(nodes: LocalNodes, managed: ManagedUse) -> UnmanagedUse:
    try:
        pids = nvml.computing_pids()
    except Unavailable:
        return UnmanagedUse(driver_answers=False)
    return UnmanagedUse(
        {
            node.name: frozenset(
                number
                for number, index in enumerate(node.nvml)
                if any(_is_unmanaged(pid, managed, (node.name, number) in managed.gpus) for pid in pids.get(index, ()))
            )
            for node in nodes.nodes
        }
    )


def _is_unmanaged(pid: int, managed: ManagedUse, is_held: bool) -> bool:
    """In a container the driver may report pids that do not exist here. On a GPU that a dev server holds, such a pid
    counts as the dev server's."""
    return not descends_from(pid, managed.pids) and not (is_held and not psutil.pid_exists(pid))


# Utilization. On Kubernetes the DCGM exporters report the same.

_MEASUREMENT_LIFETIME = timedelta(seconds=2)
_WAIT_SECONDS = 0.5


class NvmlUsage:
    """A GpuUsage. A driver that hangs occupies one thread; callers wait at most half a second for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measuring: asyncio.Task[None] | None = None
        self._measured_at: datetime | None = None
        self._by_index: dict[int, GpuUse] = {}

    async def close(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()

    async def find_usage(self, reservation: Reservation) -> Sequence[GpuUse]:
        gpus = [(share.node, index) for share in reservation.shares for index in share.gpu_indices]
        if not gpus:
            return []
        now = self._clock.now()
        if self._measuring is None and (self._measured_at is None or now - self._measured_at >= _MEASUREMENT_LIFETIME):
            self._measured_at = now
            self._measuring = asyncio.create_task(self._measure(now), name="nvml")
        if self._measuring is not None:
            await asyncio.wait({self._measuring}, timeout=_WAIT_SECONDS)
        return [self._by_index[index] for _, index in gpus if index in self._by_index]

    async def _measure(self, now: datetime) -> None:
        try:
            found = await asyncio.to_thread(measure_gpus)
            self._by_index = {
                gpu.index: GpuUse(str(gpu.index), "", now, gpu.busy, gpu.memory_used, gpu.memory_total) for gpu in found
            }
        finally:
            self._measuring = None
