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
        """Targets: a stable id, and a description for the log. Neither contains the address."""
        ...

    def can_reach(self, target: str, recipient: Recipient) -> bool:
        """Whether this recipient has an address (a user without email cannot be mailed)."""
        ...

    async def send(self, target: str, notification: Notification, recipient: Recipient) -> None:
        """Raises Unavailable if the target did not accept it; the error contains neither the address nor the text."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class QueuedNotification:
    notification_id: int
    target: str
    attempts: int
    """Including this one."""
    event: ReservationEvent
    reservation: Reservation
    """In its current state."""
    recipient: Recipient


class NotificationStore(Protocol):
    async def publish_targets(self, targets: Collection[str], kinds: Sequence[str]) -> None:
        """From now on, events of these kinds are queued for these targets. Pending ones for other targets are
        dropped."""
        ...

    async def claim(self, now: datetime, lease: timedelta, limit: int) -> list[QueuedNotification]:
        """Due ones, oldest first. No other process gets them before the lease ends."""
        ...

    async def finish_notification(self, notification_id: int, state: str, error: str | None = None) -> None:
        """`state`: `sent`, `outdated` or `given_up`."""
        ...

    async def postpone(self, notification_id: int, until: datetime, error: str) -> None: ...
