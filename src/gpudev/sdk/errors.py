"""Errors of the client, by meaning. Messages are for people; `code` is for programs.

What a process ends with on each of them is the command line's business.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar, TypeVar

_E = TypeVar("_E", bound="ClientError")


class ClientError(Exception):
    """What went wrong, in a sentence, and what to do about it. `next_step` is a sentence too, or empty."""

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
        """The API's own words (problem+json), where there are some."""

    def with_next_step(self: _E, next_step: str) -> _E:
        """The same, with another next step."""
        same = copy(self)
        same.next_step = next_step
        return same

    def __reduce__(self) -> Any:
        """Made anew as it is, whatever its class wants to be told when it is made the usual way."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class UsageError(ClientError):
    """What was asked makes no sense."""

    usual_code = "usage"


class Unauthenticated(ClientError):
    """Nobody is logged in, or the key was not taken."""

    usual_code = "unauthenticated"


class Forbidden(ClientError):
    """It is for others."""

    usual_code = "forbidden"


class NotFound(ClientError):
    """It is not there, or it is somebody else's."""

    usual_code = "not_found"


class Rejected(ClientError):
    """The API said no: invalid, in conflict with the present state, or over a limit."""

    usual_code = "invalid"


class OperationFailed(Rejected):
    """Something that was to be done to a disk was tried, and failed."""

    usual_code = "operation_failed"


class Unavailable(ClientError):
    """The API does not answer, or answers with an error of its own."""

    usual_code = "unreachable"


class Unreachable(Unavailable):
    """No answer, or none of a gpu-dev API."""

    def __init__(self, message: str, *, sent: bool, next_step: str = "", final: bool = False) -> None:
        super().__init__(message, next_step)
        self.sent = sent
        """Whether the API may have heard us all the same."""
        self.final = final
        """Trying again would end the same way."""


class ReservationEnded(ClientError):
    """It failed, was cancelled or expired while we waited for it or worked there."""

    usual_code = "reservation_ended"


class NotInTime(ClientError):
    """We waited for as long as we were told to."""

    usual_code = "not_in_time"


class LocalError(ClientError):
    """Something on this machine is missing or unusable: a program, a file, a setting."""

    usual_code = "local"


class CommandFailed(ClientError):
    """A command on a dev server ended with another exit code than 0."""

    usual_code = "command_failed"

    def __init__(self, message: str, *, exit_code: int, stdout: str, stderr: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


def _rebuild(kind: type[ClientError], arguments: tuple[Any, ...], state: dict[str, Any]) -> ClientError:
    made = kind.__new__(kind, *arguments)
    made.args = arguments
    made.__dict__.update(state)
    return made
