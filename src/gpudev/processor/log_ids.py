"""The ids that lead from what somebody was told to what was done for them: a reservation's own, and that of the request
that made it. Every line of the log that is about a reservation has both."""

from collections.abc import Iterable

import structlog

from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.reservations.reconcile_reservations import Decisions

log = structlog.get_logger(__name__)


def bind_request_id(reservation: Reservation | None) -> None:
    """For all that this task says from now on."""
    if reservation is not None and reservation.request_id is not None:
        structlog.contextvars.bind_contextvars(request_id=reservation.request_id)


def log_changes(decisions: Decisions, done: frozenset[ReservationId], reservations: Iterable[Reservation]) -> None:
    """Each decision, and whether it was still in time."""
    if not decisions.changes:
        return
    requests = request_ids_of(reservations)
    for change in decisions.changes:
        fate = "done" if change.reservation_id in done else "stale"
        kind = change.event.kind if change.event else "updated"
        ids = {"reservation_id": str(change.reservation_id), **requests.get(change.reservation_id, {})}
        log.info(f"reservation.{kind}", **ids, fate=fate)


def request_ids_of(reservations: Iterable[Reservation]) -> dict[ReservationId, dict[str, str]]:
    return {row.reservation_id: {"request_id": row.request_id} for row in reservations if row.request_id is not None}
