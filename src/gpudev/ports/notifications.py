"""Sending notifications, and the store of pending ones."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from gpudev.domain.notifications import Notification, Recipient
from gpudev.domain.reservations.reservation import Reservation, ReservationEvent


class Notifier(Protocol):
    @property
    def targets(self) -> Mapping[str, str]:
        """Where things can be told: an id that stays the same as long as the address does, and words for the log.
        Neither holds the address."""
        ...

    def can_reach(self, target: str, recipient: Recipient) -> bool:
        """Whether there is an address for this one (somebody without email cannot be mailed)."""
        ...

    async def send(self, target: str, notification: Notification, recipient: Recipient) -> None:
        """Raises Unavailable when it was not taken, in words that hold neither the address nor the notice."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class QueuedNotification:
    notification_id: int
    target: str
    attempts: int
    """This one included."""
    event: ReservationEvent
    reservation: Reservation
    """As it is now."""
    recipient: Recipient


class NotificationStore(Protocol):
    async def publish_targets(self, targets: Collection[str], kinds: Sequence[str]) -> None:
        """From now on events of these kinds are queued for these. What waits for any other is given up."""
        ...

    async def claim(self, now: datetime, lease: timedelta, limit: int) -> list[QueuedNotification]:
        """Those that are due, the oldest first; nobody else gets them before the lease is over."""
        ...

    async def finish_notification(self, notification_id: int, state: str, error: str | None = None) -> None:
        """It is over: `sent`, `outdated` or `given_up`."""
        ...

    async def postpone(self, notification_id: int, until: datetime, error: str) -> None: ...
