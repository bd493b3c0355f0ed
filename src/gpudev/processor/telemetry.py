"""Log ids and trace spans of reservations: wait, start and each effect."""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime

import structlog

from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.domain.trace_context import new_span_id
from gpudev.domain.tracing import Span, SpanRef, reservation_part_span, reservation_root_span, to_nanoseconds
from gpudev.planning.decisions import Decisions
from gpudev.ports.tracing import Tracer


def trace_changes(
    tracer: Tracer,
    changes: Iterable[Change],
    done: frozenset[ReservationId],
    reservations: Sequence[Reservation],
    now: datetime,
) -> None:
    """Spans of written changes: `preparing` ends the wait, `active` the start, an end the whole."""
    if not tracer.is_enabled or not done:
        return
    known = {row.reservation_id: row for row in reservations}
    for change in changes:
        row = known.get(change.reservation_id)
        if row is None or change.reservation_id not in done or change.to is None:
            continue
        if change.to is Status.PREPARING:
            tracer.record_span(_part(row, "wait", row.created_at, now))
        elif change.to is Status.ACTIVE and row.preparing_at is not None:
            tracer.record_span(_part(row, "start", row.preparing_at, now))
        if change.to is Status.ACTIVE or (change.to.is_terminal and row.launched_at is None):
            tracer.record_span(_whole(row, now, is_error=change.to is Status.FAILED))


def trace_effect(tracer: Tracer, reservation_id: ReservationId, kind: str, result: str, seconds: float) -> None:
    """One attempt, which has just ended."""
    if not tracer.is_enabled:
        return
    root, now_ns = reservation_root_span(reservation_id), time.time_ns()
    tracer.record_span(
        Span(
            kind,
            SpanRef(root.trace_id, new_span_id()),
            now_ns - round(seconds * 1e9),
            now_ns,
            parent_id=root.span_id,
            is_error=result in ("failed", "broken"),
            attributes={"gpudev.reservation_id": str(reservation_id), "gpudev.result": result},
        )
    )


def _part(row: Reservation, name: str, begun: datetime, ended: datetime) -> Span:
    return Span(
        name,
        reservation_part_span(row.reservation_id, name),
        to_nanoseconds(begun),
        to_nanoseconds(ended),
        parent_id=reservation_root_span(row.reservation_id).span_id,
        attributes=_about(row),
    )


def _whole(row: Reservation, now: datetime, *, is_error: bool) -> Span:
    """From the submit until the dev server is ready or has failed."""
    root = reservation_root_span(row.reservation_id)
    return Span(
        "reservation",
        root,
        to_nanoseconds(row.created_at),
        to_nanoseconds(now),
        is_error=is_error,
        attributes=_about(row),
    )


def _about(row: Reservation) -> dict[str, str | int]:
    return {
        "gpudev.reservation_id": str(row.reservation_id),
        "gpudev.gpu_type": row.gpu_type,
        "gpudev.gpu_count": row.gpu_count,
        "gpudev.node_count": row.node_count,
    }


# Log context: every log line about a reservation has its id and the id of the request that created it.


log = structlog.get_logger(__name__)


def bind_request_id(reservation: Reservation | None) -> None:
    """For all further log lines of this task."""
    if reservation is not None and reservation.request_id is not None:
        structlog.contextvars.bind_contextvars(request_id=reservation.request_id)


def log_changes(decisions: Decisions, done: frozenset[ReservationId], reservations: Iterable[Reservation]) -> None:
    """Each change, and whether it was written or stale."""
    if not decisions.changes:
        return
    requests = request_ids_of(reservations)
    for change in decisions.changes:
        result = "done" if change.reservation_id in done else "stale"
        kind = change.event.kind if change.event else "updated"
        ids = {"reservation_id": str(change.reservation_id), **requests.get(change.reservation_id, {})}
        log.info(f"reservation.{kind}", **ids, result=result)


def request_ids_of(reservations: Iterable[Reservation]) -> dict[ReservationId, dict[str, str]]:
    return {row.reservation_id: {"request_id": row.request_id} for row in reservations if row.request_id is not None}
