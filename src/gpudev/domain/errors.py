"""Errors by meaning. Each class maps to one HTTP status in the API.

Messages are written for the person who asked; they name the next step where there is one.
"""

from typing import ClassVar


class GpuDevError(Exception):
    """The base of all errors this system raises on purpose."""

    code: ClassVar[str] = "error"

    @property
    def message(self) -> str:
        return str(self)


class Invalid(GpuDevError):
    """The request can never be granted as it stands."""

    code = "invalid"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(GpuDevError):
    code = "unauthenticated"


class Forbidden(GpuDevError):
    code = "forbidden"


class NotFound(GpuDevError):
    """It is not there, or it is not yours: the two are told apart to nobody."""

    code = "not_found"


class Conflict(GpuDevError):
    """True at another time: the present state does not allow it."""

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
    """A status change that the table of moves does not have."""

    code = "illegal_move"


class Stale(Conflict):
    """The row was no longer as it had been read; nothing was written."""

    code = "stale"


class LeaseLost(GpuDevError):
    """Another processor holds the planning lease; nothing was written."""

    code = "lease_lost"


class LimitReached(GpuDevError):
    code = "limit_reached"


class RateLimited(LimitReached):
    """Nothing is wrong with it but how often it is asked."""

    code = "too_often"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(GpuDevError):
    """A part we need does not answer. Unknown is unknown: no decision follows from it."""

    code = "unavailable"


class ClusterError(GpuDevError):
    """The cluster answered, and it said no."""

    code = "cluster_error"
