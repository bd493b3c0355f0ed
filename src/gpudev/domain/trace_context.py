"""The traceparent header (W3C Trace Context). Light: every client command loads it."""

import os


def new_trace_id() -> str:
    return os.urandom(16).hex()


def new_span_id() -> str:
    return os.urandom(8).hex()


def trace_headers(trace_id: str) -> dict[str, str]:
    """Headers of one request in a recorded trace: traceparent, and a request id made of trace and span."""
    span_id = new_span_id()
    return {"traceparent": f"00-{trace_id}-{span_id}-01", "X-Request-ID": f"{trace_id}.{span_id}"}
