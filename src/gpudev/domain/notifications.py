"""Notifications about a reservation to people outside."""

from dataclasses import dataclass
from enum import StrEnum


class NotificationKind(StrEnum):
    """What users can be notified of."""

    READY = "ready"
    WARNING = "warning"
    FAILED = "failed"
    ENDED = "ended"


HISTORY_KINDS: dict[NotificationKind, tuple[str, ...]] = {
    NotificationKind.READY: ("active",),
    NotificationKind.WARNING: ("warning",),
    NotificationKind.FAILED: ("failed",),
    NotificationKind.ENDED: ("expired", "cancelled"),
}
"""The history events that cause each kind."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Text for people. It contains no secret."""

    kind: NotificationKind
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Recipient:
    """The owner of the reservation."""

    username: str
    email: str | None
