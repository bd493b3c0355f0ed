"""Access to dev servers: who may connect where and for how long; results of applying addons. Pure."""

from collections.abc import Collection
from datetime import datetime, timedelta

from gpudev.domain.addresses import IpAddress, is_metadata_address, parse_address
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import ClusterError, Conflict, NotFound, Unauthenticated
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.addons import Addons, JupyterState, JupyterStatus
from gpudev.domain.sessions.grants import CloseCode, Grant, GrantState, SessionEnd
from gpudev.ports.sessions import AddonResult

_NO_TOKEN = "invalid or expired token: request a new one"


def admit_session(
    reservation_id: ReservationId,
    grant: Grant | None,
    ends_at: datetime | None,
    grant_state: GrantState | None,
    now: datetime,
) -> SshEndpoint:
    """The endpoint of a new session. Raises Unauthenticated for an invalid token, Conflict if there is no dev server to
    connect to."""
    if (
        grant is None
        or grant_state is None
        or ends_at is None
        or now >= ends_at
        or grant.reservation_id != reservation_id
    ):
        raise Unauthenticated(_NO_TOKEN)
    ending = find_session_end(grant, grant_state)
    if ending is not None and ending.code is CloseCode.ACCESS_ENDED:
        raise Unauthenticated(_NO_TOKEN)
    if ending is not None:
        raise Conflict(ending.reason)
    return get_connection(reservation_id, grant_state.status, grant_state.connection)


def find_session_end(grant: Grant, grant_state: GrantState) -> SessionEnd | None:
    """None: the session goes on."""
    if grant_state.username is None or not grant_state.user_is_active:
        return SessionEnd(CloseCode.ACCESS_ENDED, "your account was disabled")
    if not grant_state.key_is_active:
        return SessionEnd(CloseCode.ACCESS_ENDED, "the API key that opened this was revoked")
    if grant_state.status is None or not grant_state.may_enter:
        return SessionEnd(CloseCode.ACCESS_ENDED, "this reservation is not yours")
    if grant_state.status is not Status.ACTIVE:
        return SessionEnd(
            CloseCode.RESERVATION_ENDED, f"reservation {short_id(grant.reservation_id)} is {grant_state.status}"
        )
    return None


def get_connection(reservation_id: ReservationId, status: Status | None, connection: SshEndpoint | None) -> SshEndpoint:
    """Raises NotFound, or Conflict if there is no dev server to connect to."""
    if status is None:
        raise NotFound("reservation not found")
    if status is not Status.ACTIVE or connection is None:
        raise Conflict(f"reservation {short_id(reservation_id)} is {status}: no dev server to connect to")
    return connection


def check_server_address(text: str, port: int, *, loopback_allowed: bool, ours: Collection[tuple[str, int]]) -> None:
    """Checks that a dev server may have this address. The processor records it; this check also holds if the record was
    tampered with. Raises ClusterError.

    `ours`: addresses and ports of the control plane itself.
    """
    address = parse_address(text)
    forbidden = (
        not 0 < port < 65536
        or address.is_unspecified
        or address.is_multicast
        or (address.is_loopback and not loopback_allowed)
        or is_metadata_address(address)
        or any(port == other and address == _parse_address(host) for host, other in ours)
    )
    if forbidden:
        raise ClusterError("the recorded address of this dev server is none where dev servers are: ask an operator")


def _parse_address(text: str) -> IpAddress | None:
    try:
        return parse_address(text)
    except ValueError:
        return None  # a host name, or the folder of a socket


# Results of applying addons: when to retry, and the line of history.


_WHILE_STARTING = timedelta(seconds=0.5)
_WHILE_READY = timedelta(seconds=20)
"""Jupyter may have died since the last check."""
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(minutes=1)


def applied_result(addons: Addons, status: JupyterStatus | None, now: datetime) -> AddonResult:
    wanted = addons.jupyter is not None
    return AddonResult(
        addons.reservation_id, addons.generation, None, status if wanted else None, _next_check(status, now)
    )


def failed_result(addons: Addons, error: str, now: datetime) -> AddonResult:
    """Retried with backoff: the dev server may be away for long."""
    pause = backoff(addons.attempts + 1, _FIRST_PAUSE, _LONGEST_PAUSE)
    return AddonResult(addons.reservation_id, addons.generation, error, None, now + pause)


def describe_jupyter_change(addons: Addons, status: JupyterStatus | None) -> str | None:
    """A line for the reservation's history. None: nothing that its owner waits for."""
    if addons.jupyter is None or status is None or addons.jupyter.status == status:
        return None
    match status.state:
        case JupyterState.READY:
            return "Jupyter is ready"
        case JupyterState.FAILED:
            return f"Jupyter does not run: {status.reason}"
        case JupyterState.STARTING:
            return "Jupyter is starting again" if addons.jupyter.status.state is JupyterState.READY else None


def _next_check(status: JupyterStatus | None, now: datetime) -> datetime | None:
    if status is None or status.state is JupyterState.FAILED:
        return None
    return now + (_WHILE_STARTING if status.state is JupyterState.STARTING else _WHILE_READY)
