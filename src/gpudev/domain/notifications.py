"""Something people outside are told about a reservation."""

from dataclasses import dataclass
from enum import StrEnum


class Occasion(StrEnum):
    """What people can want to be told of."""

    READY = "ready"
    WARNING = "warning"
    FAILED = "failed"
    ENDED = "ended"


EVENT_KINDS: dict[Occasion, tuple[str, ...]] = {
    Occasion.READY: ("active",),
    Occasion.WARNING: ("warning",),
    Occasion.FAILED: ("failed",),
    Occasion.ENDED: ("expired", "cancelled"),
}
"""By which lines of the history each is told."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Words for people. Nothing in them lets anybody in anywhere."""

    occasion: Occasion
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whose reservation it is about."""

    username: str
    email: str | None
