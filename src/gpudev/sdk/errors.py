"""Errors of the client. Messages are for people; `code` is for programs. The command line maps them to exit codes."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

_E = TypeVar("_E", bound="ClientError")


class ClientError(Exception):
    """Base class. `message` says what went wrong, `next_step` what to do about it; it may be empty."""

    usual_code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        next_step: str = "",
        *,
        code: str | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.code = code or self.usual_code
        self.problem = dict(problem or {})
        """The API's problem+json, if there is one."""

    def with_next_step(self: _E, next_step: str) -> _E:
        """A copy with another next step."""
        return _rebuild(type(self), self.args, {**self.__dict__, "next_step": next_step})

    def __reduce__(self) -> Any:
        """Pickle without calling `__init__`, whose parameters differ between classes."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class UsageError(ClientError):
    """Invalid arguments or settings."""

    usual_code = "usage"


class Unauthenticated(ClientError):
    """Not logged in, or the key was not accepted."""

    usual_code = "unauthenticated"


class Forbidden(ClientError):
    """This user may not do this."""

    usual_code = "forbidden"


class NotFound(ClientError):
    """It does not exist, or belongs to another user."""

    usual_code = "not_found"


class Rejected(ClientError):
    """The API rejected the request: invalid, in conflict with the current state, or over a limit."""

    usual_code = "invalid"


class OperationFailed(Rejected):
    """A disk operation was accepted and then failed."""

    usual_code = "operation_failed"


class Unavailable(ClientError):
    """The API does not respond, or responds with a server error."""

    usual_code = "unreachable"


class Unreachable(Unavailable):
    """No response, or not from a gpu-dev API."""

    def __init__(self, message: str, *, sent: bool, next_step: str = "", final: bool = False) -> None:
        super().__init__(message, next_step)
        self.sent = sent
        """Whether the API may have received the request."""
        self.final = final
        """A retry would fail in the same way."""


class ReservationEnded(ClientError):
    """The reservation failed, was cancelled or expired while it was waited for or used."""

    usual_code = "reservation_ended"


class NotInTime(ClientError):
    """The timeout has passed."""

    usual_code = "not_in_time"


class LocalError(ClientError):
    """Something on this machine is missing or unusable: a program, a file, a setting."""

    usual_code = "local"


class CommandFailed(ClientError):
    """A command on a dev server exited with a non-zero exit code."""

    usual_code = "command_failed"

    def __init__(self, message: str, *, exit_code: int, stdout: str, stderr: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


def _rebuild(kind: type[_E], arguments: tuple[Any, ...], state: dict[str, Any]) -> _E:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error
