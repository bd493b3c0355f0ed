"""Session tokens: what a grant permits, and whether it still holds."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import SshEndpoint

TOKEN_PREFIX = "gpudevt_"


class TokenPurpose(StrEnum):
    """The only kind of session that a token opens."""

    SSH = "ssh"
    LINK = "link"
    """Exchanged once for a browser token."""
    BROWSER = "browser"


@dataclass(frozen=True, slots=True)
class Grant:
    """Permits a user, through one API key, to connect to one reservation."""

    reservation_id: ReservationId
    user_id: UserId
    key_id: int


@dataclass(frozen=True, slots=True)
class GrantState:
    """The current state of what a grant depends on."""

    username: str | None
    """None: the user no longer exists."""
    user_is_active: bool
    key_is_active: bool
    """Not revoked. Sessions outlive the expiry of the key that opened them."""
    may_enter: bool
    """The reservation is the user's own, or the user is an operator."""
    status: Status | None
    """None: the reservation does not exist."""
    connection: SshEndpoint | None


class CloseCode(IntEnum):
    """WebSocket close code of a session; codes from 4000 on are our own."""

    DONE = 1000
    GOING_AWAY = 1001
    UNSUPPORTED = 1003
    BROKEN = 1011
    RESERVATION_ENDED = 4001
    ACCESS_ENDED = 4003
    SILENT = 4008
    TINY_FRAMES = 4009


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why a session must end now: a code for programs, a reason for people."""

    code: CloseCode
    reason: str
