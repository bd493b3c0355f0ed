"""Every error's one meaning to whoever asked over HTTP: a status, a code, headers, and how much of it is said aloud."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpudev.domain import errors

HTTP_STATUS: Mapping[type[errors.GpuDevError], int] = {
    errors.Invalid: 422,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.LimitReached: 429,
    errors.LeaseLost: 503,
    errors.Unavailable: 503,
    errors.ClusterError: 502,
    errors.GpuDevError: 500,
}
DENIED_STATUSES = (401, 403, 429)
"""What anybody can cause who means it ill; these are written down wherever they happen."""
_RETRY_AFTER_SECONDS = "2"


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    status: int
    code: str
    detail: str
    headers: Mapping[str, str]


def http_status(error: errors.GpuDevError) -> int:
    """The nearest class in the table: a subclass means what its parent means until it has a line of its own."""
    return next(HTTP_STATUS[kind] for kind in type(error).__mro__ if kind in HTTP_STATUS)


def to_error_response(error: errors.GpuDevError) -> ErrorResponse:
    status = http_status(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="gpu-dev"'
    if status in (429, 503):
        headers["Retry-After"] = _RETRY_AFTER_SECONDS
    if isinstance(error, errors.RateLimited):
        headers["Retry-After"] = str(math.ceil(error.retry_after_seconds))
    # What follows a colon in a fault is a cause in another program's words (hosts, ports, paths): for the log alone.
    detail = error.message.partition(": ")[0] if status >= 500 else error.message
    return ErrorResponse(status, error.code, detail, headers)


def problem_title(code: str) -> str:
    return code.replace("_", " ").capitalize()


def problem_type(code: str) -> str:
    return f"urn:gpu-dev:problem:{code}"
