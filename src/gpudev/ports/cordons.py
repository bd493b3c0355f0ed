"""Which nodes operators have closed, and what they want people there to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpudev.domain.cordon import Cordon
from gpudev.domain.ids import ReservationId


@dataclass(frozen=True, slots=True)
class AbsentNode:
    """Seen once, and not there now."""

    name: str
    gpu_type: str
    last_observed_at: datetime


class CordonReader(Protocol):
    async def cordons(self) -> Mapping[str, Cordon]: ...


class TerminalNotices(Protocol):
    async def take_notices(self) -> Sequence[tuple[ReservationId, str]]:
        """What is to be shown in whose terminals. Each is given out once."""
        ...


class ProcessorCordons(CordonReader, TerminalNotices, Protocol):
    """What the processor needs of them."""


class CordonStore(CordonReader, Protocol):
    """The processor hears of every change at once."""

    async def cordon(self, node: str, by: str, reason: str, *, now: datetime) -> Cordon:
        """Again: with the new reason. NotFound for a node that was never seen (one that is away is known
        for 30 days)."""
        ...

    async def uncordon(self, node: str) -> None:
        """Doing it twice is fine. NotFound for a node that was never seen."""
        ...

    async def has_taken_effect(self, nodes: Sequence[str]) -> bool:
        """Whether the processor has planned without these since they were closed, so that nobody is about to start
        there. Nodes that are away do not matter."""
        ...

    async def list_absent_nodes(self) -> Sequence[AbsentNode]: ...

    async def add_notice(self, reservation_id: ReservationId, message: str) -> None: ...
