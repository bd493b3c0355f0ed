"""Receives finished spans. Recording is cheap and never fails; spans may be lost."""

from typing import Protocol

from gpudev.domain.tracing import Span


class Tracer(Protocol):
    @property
    def is_enabled(self) -> bool:
        """Whether spans are recorded at all."""
        ...

    def record_span(self, span: Span) -> None: ...


class NoTracer:
    is_enabled = False

    def record_span(self, span: Span) -> None: ...


NO_TRACER: Tracer = NoTracer()
