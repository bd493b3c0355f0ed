"""Notifications about a reservation to people outside."""

from dataclasses import dataclass
from enum import StrEnum


class NotificationKind(StrEnum):
    """What people can want to be told of."""

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
"""By which lines of the history each is told."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Words for people. Nothing in them lets anybody in anywhere."""

    kind: NotificationKind
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whose reservation it is about."""

    username: str
    email: str | None
