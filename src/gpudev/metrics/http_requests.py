"""Rate, errors and duration of requests, by the route's template: a few microseconds for each."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Histogram

from gpudev.metrics import instruments

UNMATCHED_ROUTE = "unmatched"
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class RequestMeter:
    """Remembers the series it has met: looking them up by their labels would cost most of the time."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], Counter] = {}
        self._times: dict[tuple[str, str], Histogram] = {}
        self._in_progress = instruments.requests_in_progress

    def begin_request(self) -> None:
        self._in_progress.inc()

    def end_request(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """`seconds`: until the answer began, so that a stream counts by how soon it spoke. `status` 0: it never did."""
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
