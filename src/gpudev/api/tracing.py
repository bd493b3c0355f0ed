"""A request as a span: in its caller's trace, or the beginning of one. A submit is also told in its reservation's own
trace, each linked to the other."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gpudev.domain.ids import ReservationId
from gpudev.domain.trace_context import new_span_id, new_trace_id
from gpudev.domain.tracing import Span, SpanRef, parse_traceparent, reservation_part_span, reservation_root_span
from gpudev.ports.tracing import Tracer


def trace_request(tracer: Tracer, scope: Mapping[str, Any], status: int, begun_ns: int, ended_ns: int) -> None:
    parent, is_recorded = _caller_span(scope["headers"])
    if not is_recorded or scope["path"].startswith("/health"):
        return
    route = getattr(scope.get("route"), "path", "unmatched")
    trace_id = parent.trace_id if parent else new_trace_id()
    ref = SpanRef(trace_id, new_span_id())
    made = scope["state"].get("made")
    reservation_id = ReservationId(UUID(made)) if made else None
    attributes: dict[str, str | int] = {
        "http.request.method": scope["method"],
        "http.route": route,
        "http.response.status_code": status,
        "gpudev.request_id": scope["state"]["request_id"],
    }
    links = (reservation_root_span(reservation_id),) if reservation_id else ()
    tracer.record_span(
        Span(
            f"{scope['method']} {route}",
            ref,
            begun_ns,
            ended_ns,
            parent_id=parent.span_id if parent else None,
            is_server=True,
            is_error=status >= 500,
            attributes=attributes,
            links=links,
        )
    )
    if reservation_id is not None:
        submit = reservation_part_span(reservation_id, "submit")
        root = reservation_root_span(reservation_id).span_id
        tracer.record_span(Span("submit", submit, begun_ns, ended_ns, root, attributes=attributes, links=(ref,)))


def _caller_span(headers: list[tuple[bytes, bytes]]) -> tuple[SpanRef | None, bool]:
    for name, value in headers:
        if name == b"traceparent":
            return parse_traceparent(value.decode("latin-1")) or (None, True)
    return None, True
