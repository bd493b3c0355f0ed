"""Mapping of Google's errors: the cloud rejected a request, or it was unavailable.

Only a response in the Compute API's own format is the cloud's. A "404" from a proxy does not prove that a resource is
gone.
"""

import re
from typing import Any

from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable


class GcpNotFound(ClusterError):
    """The cloud says definitely that the resource does not exist."""


class GcpAlreadyExists(ClusterError):
    """A resource of this name exists."""


class GcpPermissionDenied(ClusterError):
    """We lack a permission, or GCP does not know who we are."""


class GcpConditionNotMet(ClusterError):
    """The resource changed since it was read; the request had no effect."""


_ERROR_BY_REASON: dict[str, type[GpuDevError]] = {
    "NOT_FOUND": GcpNotFound,
    "RESOURCE_NOT_FOUND": GcpNotFound,
    "ALREADY_EXISTS": GcpAlreadyExists,
    "RESOURCE_ALREADY_EXISTS": GcpAlreadyExists,
    "CONDITION_NOT_MET": GcpConditionNotMet,
    # Temporary. The first two have status 403.
    "RATE_LIMIT_EXCEEDED": Unavailable,
    "USER_RATE_LIMIT_EXCEEDED": Unavailable,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Unavailable,
    "OPERATION_RATE_EXCEEDED": Unavailable,
    "RESOURCE_NOT_READY": Unavailable,
    "INTERNAL_ERROR": Unavailable,
    "BACKEND_ERROR": Unavailable,
}
_ERROR_BY_STATUS: dict[int, type[GpuDevError]] = {
    401: GcpPermissionDenied,
    403: GcpPermissionDenied,
    404: GcpNotFound,
    408: Unavailable,
    409: Unavailable,  # another operation is running; "already exists" is recognised by its reason
    412: GcpConditionNotMet,
    429: Unavailable,
}
_NO_PROJECT = re.compile(r"resource 'projects/[^/']+' was not found", re.IGNORECASE)


def error_from_response(error: Any, permission: str) -> GpuDevError:
    """`error` is a GoogleAPICallError."""
    parsed = _parse_error(error.response)
    if parsed is None:
        return Unavailable(f"GCP could not be reached ({permission}): {str(error)[:300]}")
    status, reason, message = parsed
    return _error_for(status, reason, message, permission)


def error_from_operation(operation: Any, permission: str) -> GpuDevError | None:
    """None: it has not failed."""
    errors = list(operation.error.errors)
    status = operation.http_error_status_code
    if not errors and status < 400:
        return None
    code = errors[0].code if errors else ""
    message = "; ".join(error.message for error in errors) or operation.http_error_message
    return _error_for(status, code, message, permission)


def _error_for(status: int, reason: str, message: str, permission: str) -> GpuDevError:
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", reason).upper()
    kind = (
        _ERROR_BY_REASON.get(code) or _ERROR_BY_STATUS.get(status) or (Unavailable if status >= 500 else ClusterError)
    )
    if kind is GcpNotFound and _NO_PROJECT.search(message):
        kind = ClusterError  # a missing project does not prove that the resource is gone
    if kind is Unavailable:
        return Unavailable(f"GCP cannot answer {permission} now ({status} {reason}): {message}")
    return kind(f"GCP rejects {permission} ({status} {reason}): {message}")


def _parse_error(response: Any) -> tuple[int, str, str] | None:
    """Status, reason and message; None: the response is not in the API's own format."""
    if response is None:
        return None
    try:
        error = response.json()["error"]
        reasons = error.get("errors") or [{}]
        return int(error["code"]), str(reasons[0].get("reason", "")), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
