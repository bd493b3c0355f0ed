"""Reservations that are on their way from one place to another, and what goes along with them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from gpudev.domain.ids import ReservationId
from gpudev.ports.reservations import Change


class MoveStore(Protocol):
    async def begin_move(self, change: Change, *, now: datetime) -> None:
        """The guarded end of one that goes on elsewhere; Stale when that is no longer true. From now on what its owner
        brought, and what was wanted inside, is kept until it has gone on."""
        ...

    async def list_unfinished_moves(self) -> Sequence[ReservationId]:
        """Those that have left and not gone on, the first to leave first."""
        ...

    async def finish_move(self, left: ReservationId, change: Change | None, *, now: datetime) -> None:
        """Hands over, once, what was wanted inside the one that left to the one that `change` tells of it: added users
        and Jupyter. What it leaves behind is forgotten. None: it goes on as nothing. Stale as above."""
        ...
