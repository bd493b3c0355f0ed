"""Tracer that sends spans to an OpenTelemetry collector, through its SDK.

It sends batches by OTLP over HTTP, as protobuf. The SDK's own thread sends them; nothing waits for it. While the
collector does not answer, a limited number of spans is kept and retried for a while, then lost. An outage is logged
once.

Imported only where a collector is configured: the SDK is an extra, and slow to load.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from gpudev.domain.tracing import Span, SpanRef

log = structlog.get_logger(__name__)
_SEND_EVERY_MS = 1000
_MAX_PENDING = 8192
_RETRY_SECONDS = 60
"""How long one batch is retried. The SDK's default of ten seconds is shorter than a restart of the collector."""
_CLOSE_SECONDS = 2.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpTracer:
    """A Tracer."""

    is_enabled = True

    def __init__(self, url: str, service: str) -> None:
        """`url`: the collector's, usually ending in /v1/traces."""
        self._outage = _OutageLog()
        self._exporter = _Exporter(url, self._outage)
        self._ids = _PresetIds()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # the caller has decided whether to record a request
            resource=Resource.create({SERVICE_NAME: service}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, max_queue_size=_MAX_PENDING, schedule_delay_millis=_SEND_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("gpudev")

    def record_span(self, span: Span) -> None:
        self._ids.ref = span.ref
        recorded = self._tracer.start_span(
            span.name,
            _parent_context(span),
            SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
            attributes=span.attributes,
            links=[Link(_span_context(link)) for link in span.links],
            start_time=span.begun_ns,
        )
        if span.is_error:
            recorded.set_status(StatusCode.ERROR)
        recorded.end(span.ended_ns)

    def flush(self) -> None:
        """Send all pending spans. Blocks until the collector has them or the retries have ended."""
        self._provider.force_flush()

    async def close(self) -> None:
        """Send the rest, but wait only briefly: traces must not delay the end of a process."""
        # A daemon, unlike the event loop's own threads: the end of the process does not wait for it.
        closing = threading.Thread(target=self._provider.shutdown, name="close traces", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()
        self._outage.close()


class _PresetIds(IdGenerator):
    """Our spans have their ids already: a reservation's are derived from its id."""

    ref = SpanRef("", "")

    def generate_trace_id(self) -> int:
        return int(self.ref.trace_id, 16)

    def generate_span_id(self) -> int:
        return int(self.ref.span_id, 16)


class _Exporter(SpanExporter):
    def __init__(self, url: str, outage: "_OutageLog") -> None:
        self._sender = OTLPSpanExporter(url, timeout=_RETRY_SECONDS)
        self._outage = outage
        self._is_closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._sender.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._outage.is_logged = False
        return result

    def shutdown(self) -> None:
        """Ends the retries. The SDK calls it, or we do after the time limit."""
        if not self._is_closed:
            self._is_closed = True
            self._sender.shutdown()


class _OutageLog(logging.Handler):
    """The SDK logs every failed attempt; the first one of an outage is enough."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.is_logged = False
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.is_logged:
            self.is_logged = True
            log.warning("traces.unavailable", error=record.getMessage())

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True
        super().close()


def _parent_context(span: Span) -> Context:
    """Empty for the first span of a trace, so that it never gets the current context as its parent."""
    if span.parent_id is None:
        return Context()
    parent = _span_context(SpanRef(span.ref.trace_id, span.parent_id))
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _span_context(ref: SpanRef) -> SpanContext:
    return SpanContext(int(ref.trace_id, 16), int(ref.span_id, 16), is_remote=True, trace_flags=_SAMPLED)
