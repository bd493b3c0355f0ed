"""Errors by meaning. Each class maps to one HTTP status in the API.

Messages are written for the user and name the next step where there is one.
"""

from typing import ClassVar


class GpuDevError(Exception):
    """Base class of all errors that gpu-dev raises on purpose."""

    code: ClassVar[str] = "error"

    @property
    def message(self) -> str:
        return str(self)


class Invalid(GpuDevError):
    """The request can never succeed in this form."""

    code = "invalid"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ImageUnsupported(Invalid):
    """Dev servers here are not containers."""

    code = "image_unsupported"


class Unauthenticated(GpuDevError):
    code = "unauthenticated"


class Forbidden(GpuDevError):
    code = "forbidden"


class NotFound(GpuDevError):
    """It does not exist, or it belongs to another user: callers cannot tell which."""

    code = "not_found"


class Conflict(GpuDevError):
    """The current state does not allow it."""

    code = "conflict"


class AmbiguousId(Conflict):
    code = "ambiguous_id"


class DiskHeld(Conflict):
    code = "disk_held"


class IdTaken(Conflict):
    """A new id's short form belongs to an unreleased reservation; another id will do."""

    code = "id_taken"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class IllegalTransition(Conflict):
    """A transition that is not in the table."""

    code = "illegal_move"


class Stale(Conflict):
    """The row has changed since it was read; nothing was written."""

    code = "stale"


class LeaseLost(GpuDevError):
    """Another processor holds the planning lease; nothing was written."""

    code = "lease_lost"


class LimitReached(GpuDevError):
    code = "limit_reached"


class RateLimited(LimitReached):
    """Too many requests in a short time."""

    code = "too_often"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(GpuDevError):
    """A dependency does not answer. Its state is unknown, so no decision follows."""

    code = "unavailable"


class ClusterError(GpuDevError):
    """The cluster answered with an error."""

    code = "cluster_error"
