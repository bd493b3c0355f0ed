"""How busy this machine's GPUs are, as the driver tells: what DCGM exporters tell of a cluster's."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from gpudev.adapters.local.machine.nvml import measure_gpus
from gpudev.domain.gpu_use import GpuUse
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock

_FRESH_FOR = timedelta(seconds=2)
_WAIT_SECONDS = 0.5


class NvmlUsage:
    """A GpuUsage. A driver that hangs keeps one thread busy and delays nobody for long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measuring: asyncio.Task[None] | None = None
        self._measured_at: datetime | None = None
        self._by_index: dict[int, GpuUse] = {}

    async def close(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()

    async def find_usage(self, reservation: Reservation) -> Sequence[GpuUse]:
        wanted = [(share.node, index) for share in reservation.shares for index in share.gpu_indices]
        if not wanted:
            return []
        now = self._clock.now()
        if self._measuring is None and (self._measured_at is None or now - self._measured_at >= _FRESH_FOR):
            self._measured_at = now
            self._measuring = asyncio.create_task(self._measure(now), name="nvml")
        if self._measuring is not None:
            await asyncio.wait({self._measuring}, timeout=_WAIT_SECONDS)
        return [self._by_index[index] for _, index in wanted if index in self._by_index]

    async def _measure(self, now: datetime) -> None:
        try:
            found = await asyncio.to_thread(measure_gpus)
            self._by_index = {
                one.index: GpuUse(str(one.index), "", now, one.busy, one.memory_used, one.memory_total) for one in found
            }
        finally:
            self._measuring = None
