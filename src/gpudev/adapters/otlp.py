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
_EVERY_SECONDS = 1.0
_MOST_AT_ONCE, _MOST_WAITING = 512, 8192
_ANSWER_WITHIN_SECONDS = 5.0
_LAST_CHANCE_SECONDS = 2.0
_INTERNAL, _SERVER = 1, 2
_FAILED = 2


class OtlpTracer:
    """A Tracer."""

    is_on = True

    def __init__(self, url: str, service: str) -> None:
        """`url`: the collector's, usually ending in /v1/traces."""
        self._url = url
        self._service = service
        self._waiting: deque[Span] = deque(maxlen=_MOST_WAITING)
        self._client = httpx2.AsyncClient(timeout=_ANSWER_WITHIN_SECONDS, follow_redirects=False)
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="traces")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CHANCE_SECONDS):
                await self.flush()
        await self._client.aclose()

    def note(self, span: Span) -> None:
        self._waiting.append(span)

    async def flush(self) -> None:
        """Until all are sent, or the collector does not take them."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._waiting)))]
            if not await self._send(batch):
                room = _MOST_WAITING - len(self._waiting)
                self._waiting.extendleft(reversed(batch[:room]))
                return

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            await self.flush()

    async def _send(self, batch: Sequence[Span]) -> bool:
        body = orjson.dumps(as_otlp(batch, self._service))
        try:
            answer = await self._client.post(self._url, content=body, headers={"Content-Type": "application/json"})
            answer.raise_for_status()
        except httpx2.HTTPError as error:
            if not self._is_away:
                log.warning("traces.unavailable", error=str(error) or type(error).__name__)
            self._is_away = True
            return False
        self._is_away = False
        return True


def as_otlp(spans: Sequence[Span], service: str) -> dict[str, Any]:
    resource = _attributes({"service.name": service})
    scope = {"scope": {"name": "gpudev"}, "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]}


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.ref.trace_id,
        "spanId": span.ref.span_id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": span.name,
        "kind": _SERVER if span.is_server else _INTERNAL,
        # As the protocol wants 64-bit numbers in JSON.
        "startTimeUnixNano": str(span.begun_ns),
        "endTimeUnixNano": str(span.ended_ns),
        "attributes": _attributes(span.attributes),
        "links": [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links],
        "status": {"code": _FAILED} if span.is_error else {},
    }


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
