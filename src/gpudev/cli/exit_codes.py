"""Exit codes, the error that each stands for, and how errors are printed."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

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
    """The exit codes; docs/cli.md explains them to people. `connect` ends with ssh's own once ssh has begun."""

    OK = 0
    INTERNAL = 1
    """A fault of this program."""
    USAGE = 2
    """The command line is wrong."""
    AUTH = 3
    """Not logged in, or not allowed."""
    NOT_FOUND = 4
    REJECTED = 5
    """The API said no: invalid, in conflict with the present state, or over a limit."""
    RESERVATION_ENDED = 6
    """The reservation failed, was cancelled or expired while we waited for it."""
    UNREACHABLE = 7
    """The API does not answer, or answers with an error of its own."""
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
    """What a command itself finds wrong, and what the process ends with for it."""

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
    """What the process ends with."""
    if isinstance(error, CliError):
        return error.exit_code
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), ExitCode.INTERNAL)


def error_text(error: ClientError) -> str:
    """For people."""
    sentences = (error.message.strip(), error.next_step.strip())
    return "Error: " + " ".join(_with_full_stop(sentence) for sentence in sentences if sentence)


def error_json(error: ClientError) -> dict[str, Any]:
    """For programs: the API's problem where there is one, the exit code always."""
    own = {"code": error.code, "detail": error.message, "exit_code": int(exit_code_of(error))}
    if error.next_step:
        own["next_step"] = error.next_step
    return {**error.problem, **own}


def _with_full_stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def usage_error(message: str, next_step: str = "") -> CliError:
    return CliError(ExitCode.USAGE, message, next_step)


def local_error(message: str, next_step: str = "") -> CliError:
    return CliError(ExitCode.LOCAL, message, next_step)
