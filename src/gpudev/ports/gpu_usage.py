"""How busy GPUs are, for those who look at a reservation."""

from collections.abc import Sequence
from typing import Protocol

from gpudev.domain.gpu_use import GpuUse
from gpudev.domain.reservations.reservation import Reservation


class GpuUsage(Protocol):
    async def find_usage(self, reservation: Reservation) -> Sequence[GpuUse]:
        """What was last measured, by node and number. Nothing where nobody measures, or nobody could be asked soon
        enough: it never raises, and hardly waits."""
        ...

    async def close(self) -> None: ...
