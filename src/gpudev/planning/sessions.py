"""Who gets through to which dev server, for how long, and to which addresses nobody ever gets. All of it pure."""

from collections.abc import Collection
from datetime import datetime

from gpudev.domain.addresses import Address, is_metadata, plain
from gpudev.domain.errors import ClusterError, Conflict, NotFound, Unauthenticated
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Connection
from gpudev.domain.sessions.grants import Close, Ending, Grant, Standing

_NO_TOKEN = "this token does not open anything (any more): ask for a new one"


def admit(
    asked: ReservationId, grant: Grant | None, ends_at: datetime | None, standing: Standing | None, now: datetime
) -> Connection:
    """Where a new session goes. Raises Unauthenticated for what is no good token here, Conflict where there is
    nothing to connect to."""
    if grant is None or standing is None or ends_at is None or now >= ends_at or grant.reservation_id != asked:
        raise Unauthenticated(_NO_TOKEN)
    ending = why_ended(grant, standing)
    if ending is not None and ending.close is Close.ACCESS_ENDED:
        raise Unauthenticated(_NO_TOKEN)
    if ending is not None:
        raise Conflict(ending.reason)
    return connection_of(asked, standing.status, standing.connection)


def why_ended(grant: Grant, standing: Standing) -> Ending | None:
    """None: the session goes on."""
    if standing.username is None or not standing.user_is_active:
        return Ending(Close.ACCESS_ENDED, "your account was disabled")
    if not standing.key_is_active:
        return Ending(Close.ACCESS_ENDED, "the API key that opened this was revoked")
    if standing.status is None or not standing.may_enter:
        return Ending(Close.ACCESS_ENDED, "this reservation is not yours")
    if standing.status is not Status.ACTIVE:
        return Ending(Close.RESERVATION_ENDED, f"reservation {short_id(grant.reservation_id)} is {standing.status}")
    return None


def connection_of(reservation_id: ReservationId, status: Status | None, connection: Connection | None) -> Connection:
    """Raises NotFound, or Conflict while (or after) there is no dev server to connect to."""
    if status is None:
        raise NotFound("there is no such reservation")
    if status is not Status.ACTIVE or connection is None:
        raise Conflict(f"reservation {short_id(reservation_id)} is {status}: there is no dev server to connect to")
    return connection


def check_address(text: str, port: int, *, loopback_allowed: bool, ours: Collection[tuple[str, int]]) -> None:
    """Whether a dev server may be at this address. What is recorded comes from our own processor; this holds even if
    somebody managed to have something else recorded. Raises ClusterError.

    `ours`: addresses and ports of the control plane itself.
    """
    address = plain(text)
    forbidden = (
        not 0 < port < 65536
        or address.is_unspecified
        or address.is_multicast
        or (address.is_loopback and not loopback_allowed)
        or is_metadata(address)
        or any(port == other and address == _find_plain(host) for host, other in ours)
    )
    if forbidden:
        raise ClusterError("the recorded address of this dev server is none where dev servers are: ask an operator")


def _find_plain(text: str) -> Address | None:
    try:
        return plain(text)
    except ValueError:
        return None  # a name, or the folder of a socket
