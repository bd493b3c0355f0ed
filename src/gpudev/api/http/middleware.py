"""Middleware of every request: id, log line, metrics, security headers, and a response to any failure."""

import re
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import structlog
from prometheus_client import Counter, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpudev.api.http.responses import problem_response
from gpudev.domain.ids import ReservationId
from gpudev.domain.trace_context import new_span_id, new_trace_id
from gpudev.domain.tracing import Span, SpanRef, parse_traceparent, reservation_part_span, reservation_root_span
from gpudev.metrics import instruments
from gpudev.ports.tracing import NO_TRACER, Tracer

# Tracing: a request is a span in its caller's trace, or begins a trace. A submit also gets a span in its reservation's
# trace; the two are linked.


def trace_request(tracer: Tracer, scope: Mapping[str, Any], status: int, begun_ns: int, ended_ns: int) -> None:
    parent, is_recorded = _caller_span(scope["headers"])
    if not is_recorded or scope["path"].startswith("/health"):
        return
    route = getattr(scope.get("route"), "path", "unmatched")
    trace_id = parent.trace_id if parent else new_trace_id()
    ref = SpanRef(trace_id, new_span_id())
    submitted_id = scope["state"].get("submitted_id")
    reservation_id = ReservationId(UUID(submitted_id)) if submitted_id else None
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


# Request metrics, by route template.


UNMATCHED_ROUTE = "unmatched"
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class RequestMeter:
    """Caches the labelled series: looking them up by label would take most of the time."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], Counter] = {}
        self._times: dict[tuple[str, str], Histogram] = {}
        self._in_progress = instruments.requests_in_progress

    def begin_request(self) -> None:
        self._in_progress.inc()

    def end_request(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """`seconds`: until the response began, so that a stream's duration does not count. `status` 0: no response."""
        self._in_progress.dec()
        method, route = scope["method"], getattr(scope.get("route"), "path", UNMATCHED_ROUTE)
        if method not in _METHODS:
            method = "other"
        count = self._counts.get((method, route, status))
        if count is None:
            count = self._counts[method, route, status] = instruments.requests.labels(method, route, str(status or 499))
        count.inc()
        time = self._times.get((method, route))
        if time is None:
            time = self._times[method, route] = instruments.request_seconds.labels(method, route)
        time.observe(seconds)


_SAFE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,64}")
_DEFAULT_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_JOB_PREFIX = b"/v1/jobs/"
log = structlog.get_logger()


class RequestMiddleware:
    """Pure ASGI, so that streams and disconnects pass through untouched."""

    def __init__(self, app: ASGIApp, tracer: Tracer = NO_TRACER) -> None:
        self._app = app
        self._tracer = tracer
        self._meter = RequestMeter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started = responded = time.perf_counter()
        status = 0
        self._meter.begin_request()

        async def send_with_id(message: Message) -> None:
            nonlocal status, responded
            if message["type"] == "http.response.start":
                status = message["status"]
                responded = time.perf_counter()
                if status == 202:
                    scope["state"]["submitted_id"] = _submitted_id(message["headers"])
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode("ascii")),
                    *_security_headers(scope, message["headers"]),
                ]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except ClientDisconnect:
                status = status or 499
            except Exception:
                log.exception("http.unexpected_error", method=scope["method"], path=scope["path"])
                if status:
                    raise  # the response has begun and can only be aborted
                detail = f"internal error; ask an operator about request {request_id}"
                await problem_response(request_id, 500, "internal", detail)(scope, receive, send_with_id)
            finally:
                ended = time.perf_counter()
                self._meter.end_request(scope, status, (responded if status else ended) - started)
                if self._tracer.is_enabled:
                    now_ns = time.time_ns()
                    trace_request(self._tracer, scope, status, now_ns - round((ended - started) * 1e9), now_ns)
                _log_request(scope, status, ended - started)


def _security_headers(scope: Scope, given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers that restrict what browsers do with a response. Pages have their own for some of them."""
    names = {name for name, _ in given}
    headers = [header for header in _DEFAULT_HEADERS if header[0] not in names]
    if scope["path"].startswith("/v1") and b"cache-control" not in names:
        headers.append((b"cache-control", b"no-store"))
    if scope.get("scheme") == "https":
        headers.append((b"strict-transport-security", b"max-age=31536000"))
    return headers


def _request_id(scope: Scope) -> str:
    """The client's own id if it is safe to log and echo, otherwise a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE_REQUEST_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return uuid.uuid4().hex


def _submitted_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The id of the reservation that was just submitted, from the Location header."""
    for name, value in headers:
        if name == b"location" and value.startswith(_JOB_PREFIX):
            return value.removeprefix(_JOB_PREFIX).decode("ascii")
    return None


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    path: str = scope["path"]
    write = log.debug if path.startswith("/health") and status < 500 else log.info
    fields = {"method": scope["method"], "path": path, "status": status, "ms": round(seconds * 1000, 2)}
    submitted_id = scope["state"].get("submitted_id")
    if submitted_id is not None:
        # Connects the request id, which the client has, with the reservation id of the processor's log lines.
        fields["reservation_id"] = submitted_id
    write("http.request", **fields, user=scope["state"].get("username"))
