"""Session tokens: what a grant permits, and whether it still holds."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import SshEndpoint

TOKEN_PREFIX = "gpudevt_"


class TokenPurpose(StrEnum):
    """What a token opens, and nothing else."""

    SSH = "ssh"
    LINK = "link"
    """To be exchanged for one of a browser, once."""
    BROWSER = "browser"


@dataclass(frozen=True, slots=True)
class Grant:
    """Whom a token lets through to what: a user, by the API key that asked for it, to one reservation."""

    reservation_id: ReservationId
    user_id: UserId
    key_id: int


@dataclass(frozen=True, slots=True)
class GrantState:
    """What a grant hangs on, as it is now."""

    username: str | None
    """None: there is no such user any more."""
    user_is_active: bool
    key_is_active: bool
    """Not revoked. A key that merely came to its end does not take the sessions with it that it opened in time."""
    may_enter: bool
    """The reservation is the user's own, or the user is an operator."""
    status: Status | None
    """None: there is no such reservation."""
    connection: SshEndpoint | None


class CloseCode(IntEnum):
    """How a session ended, as the WebSocket's close code; those from 4000 on are our own."""

    DONE = 1000
    GOING_AWAY = 1001
    UNSUPPORTED = 1003
    BROKEN = 1011
    RESERVATION_ENDED = 4001
    ACCESS_ENDED = 4003
    SILENT = 4008


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why a session must end now, for a program and for a person."""

    code: CloseCode
    reason: str
