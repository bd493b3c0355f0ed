"""Being told that a reservation, or somebody's access, changed, instead of asking again and again."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gpudev.domain.ids import ReservationId


class ReservationChanges(Protocol):
    def subscribe(self, reservation_id: ReservationId) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Yields after each change of this one, from entering on. Several changes may come as one, and one may be
        lost with the connection: a wake-up says "look", never what there is to see."""
        ...


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A key, or all keys of a user, may mean something else from now on. Both None: any key may."""

    key_id: int | None = None
    user_id: int | None = None


class AccessChanges(Protocol):
    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        """Calls `heard` for every change, and with an empty one whenever some may have been missed."""
        ...

    def is_fresh(self) -> bool:
        """Whether every change that is older than a second has been heard. Asking keeps it so."""
        ...


class NoAccessChanges:
    """Nothing is ever heard: whoever remembers keys must ask again every second."""

    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        return None

    def is_fresh(self) -> bool:
        return False


NO_ACCESS_CHANGES = NoAccessChanges()
