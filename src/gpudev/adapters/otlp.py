"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, as JSON, a batch at a time.

Nobody waits for it. While the collector is away, spans are kept as far as there is room, then lost; that is told once.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import orjson
import structlog

from gpudev.domain.tracing import Span

log = structlog.get_logger(__name__)
_INTERVAL_SECONDS = 1.0
_MAX_BATCH, _MAX_PENDING = 512, 8192
_TIMEOUT_SECONDS = 5.0
_CLOSE_TIMEOUT_SECONDS = 2.0
_KIND_INTERNAL, _KIND_SERVER = 1, 2
_STATUS_ERROR = 2


class OtlpTracer:
    """A Tracer."""

    is_enabled = True

    def __init__(self, url: str, service: str) -> None:
        """`url`: the collector's, usually ending in /v1/traces."""
        self._url = url
        self._service = service
        self._pending: deque[Span] = deque(maxlen=_MAX_PENDING)
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, follow_redirects=False)
        self._task: asyncio.Task[None] | None = None
        self._is_unreachable = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="traces")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                await self.flush()
        await self._client.aclose()

    def record_span(self, span: Span) -> None:
        self._pending.append(span)

    async def flush(self) -> None:
        """Until all are sent, or the collector does not take them."""
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(_MAX_BATCH, len(self._pending)))]
            if not await self._send(batch):
                room = _MAX_PENDING - len(self._pending)
                self._pending.extendleft(reversed(batch[:room]))
                return

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            await self.flush()

    async def _send(self, batch: Sequence[Span]) -> bool:
        body = orjson.dumps(to_otlp(batch, self._service))
        try:
            answer = await self._client.post(self._url, content=body, headers={"Content-Type": "application/json"})
            answer.raise_for_status()
        except httpx2.HTTPError as error:
            if not self._is_unreachable:
                log.warning("traces.unavailable", error=str(error) or type(error).__name__)
            self._is_unreachable = True
            return False
        self._is_unreachable = False
        return True


def to_otlp(spans: Sequence[Span], service: str) -> dict[str, Any]:
    resource = _attributes_to_otlp({"service.name": service})
    scope = {"scope": {"name": "gpudev"}, "spans": [_span_to_otlp(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]}


def _span_to_otlp(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.ref.trace_id,
        "spanId": span.ref.span_id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": span.name,
        "kind": _KIND_SERVER if span.is_server else _KIND_INTERNAL,
        # As the protocol wants 64-bit numbers in JSON.
        "startTimeUnixNano": str(span.begun_ns),
        "endTimeUnixNano": str(span.ended_ns),
        "attributes": _attributes_to_otlp(span.attributes),
        "links": [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links],
        "status": {"code": _STATUS_ERROR} if span.is_error else {},
    }


def _attributes_to_otlp(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
