"""Traces, where a collector is named; else nothing is made at all."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.adapters.otlp import OtlpTracer
from gpudev.ports.tracing import NO_TRACER, Tracer
from gpudev.settings import Settings


@contextlib.asynccontextmanager
async def open_tracer(settings: Settings, service: str) -> AsyncIterator[Tracer]:
    if not settings.otlp_url:
        yield NO_TRACER
        return
    tracer = OtlpTracer(settings.otlp_url, service)
    tracer.start()
    try:
        yield tracer
    finally:
        await tracer.close()
