"""What an error of Google's client means, decided once: the cloud said no, or it could not be asked.

Only an answer in the Compute API's own form is the cloud's. A "404" that some proxy made is no proof that anything is
gone.
"""

import re
from typing import Any

from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable


class GcpNotFound(ClusterError):
    """The cloud says definitely that there is none."""


class GcpAlreadyExists(ClusterError):
    """Something of this name exists."""


class GcpPermissionDenied(ClusterError):
    """We lack a permission, or GCP does not know who we are."""


class GcpConditionNotMet(ClusterError):
    """It changed since it was read; nothing was done."""


_ERROR_BY_REASON: dict[str, type[GpuDevError]] = {
    "NOT_FOUND": GcpNotFound,
    "RESOURCE_NOT_FOUND": GcpNotFound,
    "ALREADY_EXISTS": GcpAlreadyExists,
    "RESOURCE_ALREADY_EXISTS": GcpAlreadyExists,
    "CONDITION_NOT_MET": GcpConditionNotMet,
    # True at another time. The first two come as 403.
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
    409: Unavailable,  # another operation is under way; that something exists is told by its reason
    412: GcpConditionNotMet,
    429: Unavailable,
}
_NO_PROJECT = re.compile(r"resource 'projects/[^/']+' was not found", re.IGNORECASE)


def error_from_response(error: Any, permission: str) -> GpuDevError:
    """`error` is a GoogleAPICallError."""
    told = _parse_error(error.response)
    if told is None:
        return Unavailable(f"GCP could not be asked ({permission}): {str(error)[:300]}")
    status, reason, message = told
    return _error_for(status, reason, message, permission)


def error_from_operation(operation: Any, permission: str) -> GpuDevError | None:
    """What became of an operation that is done. None: it succeeded."""
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
        kind = ClusterError  # nothing is known of what was in it
    if kind is Unavailable:
        return Unavailable(f"GCP did not do it now ({permission}; {status} {reason}): {message}")
    return kind(f"GCP refuses {permission} ({status} {reason}): {message}")


def _parse_error(response: Any) -> tuple[int, str, str] | None:
    """Status, reason and message of an answer in the API's own form."""
    if response is None:
        return None
    try:
        error = response.json()["error"]
        reasons = error.get("errors") or [{}]
        return int(error["code"]), str(reasons[0].get("reason", "")), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
