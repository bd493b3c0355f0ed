"""The mapping of errors to HTTP: status, code, headers, and which part of the message is sent."""

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
"""Statuses that an attacker can cause at will; always audited."""
_CODES = {400: "malformed", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media"}
_RETRY_AFTER_SECONDS = "2"


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    status: int
    code: str
    detail: str
    headers: Mapping[str, str]

    def problem_body(self, request_id: str) -> bytes:
        """A problem document (RFC 9457)."""
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
    """A subclass without its own entry has its parent's status."""
    return next(HTTP_STATUS[kind] for kind in type(error).__mro__ if kind in HTTP_STATUS)


def error_code(status: int) -> str:
    """For errors that the web framework raises itself."""
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
    # In a server error the part after a colon is the cause (hosts, ports, paths): only for the log.
    detail = error.message.partition(": ")[0] if status >= 500 else error.message
    return ErrorResponse(status, error.code, detail, headers)


def problem_title(code: str) -> str:
    return code.replace("_", " ").capitalize()


def problem_type(code: str) -> str:
    return f"urn:gpu-dev:problem:{code}"


# A response that cannot be completed is aborted, so that the client does not take it for complete.


_ABORT_EXTENSION = "gpu-dev.cut"


def allow_abort(scope: MutableMapping[str, Any], transport: asyncio.Transport) -> None:
    """Makes `abort_response` possible for this request."""
    scope["extensions"] = {**scope.get("extensions", {}), _ABORT_EXTENSION: {"transport": transport}}


async def abort_response(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> bool:
    """Closes the connection and waits for the disconnect. False: the server does not support it."""
    extension = scope.get("extensions", {}).get(_ABORT_EXTENSION)
    if extension is None:
        return False
    extension["transport"].abort()
    while (await receive())["type"] != "http.disconnect":
        pass
    return True
