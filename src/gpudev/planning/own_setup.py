"""What became of somebody's own set-up is told once: it is a line of the history, and nothing else follows from it.

A dotfiles repository that cannot be cloned, or a script that fails, never ends a reservation.
"""

from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.cluster import ServerState
from gpudev.ports.reservations import Change, NewEvent


def decide_personalization(reservation: Reservation, server: ServerState | None) -> Change | None:
    if server is None or server.setup_outcome is None or reservation.status is not Status.ACTIVE:
        return None
    if server.setup_outcome == reservation.setup_outcome:
        return None
    return Change(
        reservation.reservation_id,
        reservation.status,
        reservation.version,
        NewEvent("setup", server.setup_outcome),
        fields={"setup_outcome": server.setup_outcome},
    )
