"""Being told that a reservation changed, instead of asking again and again."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from gpudev.domain.ids import ReservationId


class ReservationChanges(Protocol):
    def subscribe(self, reservation_id: ReservationId) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Yields after each change of this one, from entering on. Several changes may come as one, and one may be
        lost with the connection: a wake-up says "look", never what there is to see."""
        ...
