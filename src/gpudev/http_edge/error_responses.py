"""The one mapping of errors to HTTP: status, code, headers, and how much is revealed."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

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
_CODES = {400: "malformed", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media"}
_RETRY_AFTER_SECONDS = "2"


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    status: int
    code: str
    detail: str
    headers: Mapping[str, str]

    def problem_body(self, request_id: str) -> bytes:
        """A problem document (RFC 9457), as the API answers errors."""
        return json.dumps(
            {
                "type": problem_type(self.code),
                "title": problem_title(self.code),
                "status": self.status,
                "detail": self.detail,
                "code": self.code,
                "request_id": request_id,
            }
        ).encode()


def http_status(error: errors.GpuDevError) -> int:
    """The nearest class in the table: a subclass means what its parent means until it has a line of its own."""
    return next(HTTP_STATUS[kind] for kind in type(error).__mro__ if kind in HTTP_STATUS)


def error_code(status: int) -> str:
    """Of what the web framework rejects, which has no error of ours."""
    return _CODES.get(status, HTTPStatus(status).name.lower())


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


# A response that cannot be completed is aborted, so that nobody takes it for whole.


_ABORT_EXTENSION = "gpu-dev.cut"


def allow_abort(scope: MutableMapping[str, Any], transport: asyncio.Transport) -> None:
    """For whoever answers this request."""
    scope["extensions"] = {**scope.get("extensions", {}), _ABORT_EXTENSION: {"transport": transport}}


async def abort_response(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> bool:
    """Hang up, and wait until that is seen. False: this server does not offer it."""
    offered = scope.get("extensions", {}).get(_ABORT_EXTENSION)
    if offered is None:
        return False
    offered["transport"].abort()
    while (await receive())["type"] != "http.disconnect":
        pass
    return True
