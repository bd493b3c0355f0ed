"""Exit codes, their errors, and how errors are printed."""

from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from typing import Any

from gpudev.cli import output
from gpudev.sdk.errors import (
    ClientError,
    Forbidden,
    LocalError,
    NotFound,
    Rejected,
    ReservationEnded,
    Unauthenticated,
    Unavailable,
    UsageError,
)


class ExitCode(IntEnum):
    """The exit codes, documented in docs/cli.md. Once ssh runs, `connect` exits with ssh's code."""

    OK = 0
    INTERNAL = 1
    """A bug in this program."""
    USAGE = 2
    """The command line is wrong."""
    AUTH = 3
    """Not logged in, or not allowed."""
    NOT_FOUND = 4
    REJECTED = 5
    """The API rejected the request: invalid, in conflict with the current state, or over a limit."""
    RESERVATION_ENDED = 6
    """The reservation failed, was cancelled or expired while the command waited for it."""
    UNREACHABLE = 7
    """The API does not respond, or responds with a server error."""
    LOCAL = 8
    """Something on this machine is missing or unusable: a program, a file, a setting."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_ERROR_CODES = {
    ExitCode.INTERNAL: "internal",
    ExitCode.USAGE: "usage",
    ExitCode.AUTH: "unauthenticated",
    ExitCode.NOT_FOUND: "not_found",
    ExitCode.REJECTED: "invalid",
    ExitCode.RESERVATION_ENDED: "reservation_ended",
    ExitCode.UNREACHABLE: "unreachable",
    ExitCode.LOCAL: "local",
    ExitCode.INTERRUPTED: "interrupted",
}
_EXIT_CODES: tuple[tuple[type[ClientError], ExitCode], ...] = (
    (UsageError, ExitCode.USAGE),
    (Unauthenticated, ExitCode.AUTH),
    (Forbidden, ExitCode.AUTH),
    (NotFound, ExitCode.NOT_FOUND),
    (Rejected, ExitCode.REJECTED),
    (ReservationEnded, ExitCode.RESERVATION_ENDED),
    (Unavailable, ExitCode.UNREACHABLE),
    (LocalError, ExitCode.LOCAL),
)


class CliError(ClientError):
    """An error found by a command itself, with its exit code."""

    def __init__(
        self,
        exit_code: ExitCode,
        message: str,
        next_step: str = "",
        *,
        code: str | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, next_step, code=code or _ERROR_CODES[exit_code], problem=problem)
        self.exit_code = exit_code


def exit_code_of(error: ClientError) -> ExitCode:
    if isinstance(error, CliError):
        return error.exit_code
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), ExitCode.INTERNAL)


def write_error(error: ClientError, *, as_json: bool) -> None:
    """To standard error, for people or for programs. An interrupt is what the user wanted, so it is not called an
    error."""
    if as_json:
        from json import dumps

        output.write_note(dumps(error_json(error)))
        return
    message, hint = (_with_full_stop(text.strip()) for text in (_message_in_own_zone(error), error.next_step))
    if exit_code_of(error) is ExitCode.INTERRUPTED:
        output.write_error("", message[:1].upper() + message[1:], hint)
    else:
        output.write_error("Error:", message, hint)


def error_json(error: ClientError) -> dict[str, Any]:
    """For programs: the API's problem where there is one, the exit code always."""
    own = {"code": error.code, "detail": error.message, "exit_code": int(exit_code_of(error))}
    if error.next_step:
        own["next_step"] = error.next_step
    return {**error.problem, **own}


def _message_in_own_zone(error: ClientError) -> str:
    times = error.problem.get("times")
    if not isinstance(times, dict) or not times:
        return error.message
    from gpudev.cli import formatting  # slow to load

    try:
        moments = {text: datetime.fromisoformat(str(moment)) for text, moment in times.items()}
    except ValueError:
        return error.message
    return formatting.in_own_zone(error.message, moments, formatting.utc_now())


def _with_full_stop(sentence: str) -> str:
    return sentence if not sentence or sentence.endswith((".", "?", "!")) else f"{sentence}."


def usage_error(message: str, next_step: str = "") -> CliError:
    return CliError(ExitCode.USAGE, message, next_step)


def local_error(message: str, next_step: str = "") -> CliError:
    return CliError(ExitCode.LOCAL, message, next_step)
