"""How the program ends: the exit codes, and the one exception that carries one together with its sentence."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """The exit codes; docs/cli.md explains them to people. `connect` ends with ssh's own once ssh has begun."""

    OK = 0
    INTERNAL = 1
    """A fault of this program."""
    USAGE = 2
    """The command line is wrong."""
    AUTH = 3
    """Not logged in, or not allowed."""
    NOT_FOUND = 4
    REFUSED = 5
    """The API said no: invalid, in conflict with the present state, or over a limit."""
    RESERVATION_ENDED = 6
    """The reservation failed, was cancelled or expired while we waited for it."""
    UNREACHABLE = 7
    """The API does not answer, or answers with an error of its own."""
    LOCAL = 8
    """Something on this machine is missing or unusable: a program, a file, a setting."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_CODES = {
    Exit.INTERNAL: "internal",
    Exit.USAGE: "usage",
    Exit.AUTH: "unauthenticated",
    Exit.NOT_FOUND: "not_found",
    Exit.REFUSED: "invalid",
    Exit.RESERVATION_ENDED: "reservation_ended",
    Exit.UNREACHABLE: "unreachable",
    Exit.LOCAL: "local",
    Exit.INTERRUPTED: "interrupted",
}


class CliError(Exception):
    """What went wrong, in a sentence, and what to do about it. `next_step` is a sentence too, or empty."""

    def __init__(
        self,
        exit_code: Exit,
        message: str,
        next_step: str = "",
        *,
        code: str | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.next_step = next_step
        self.code = code or _CODES[exit_code]
        self.problem = dict(problem or {})
        """The API's own words (problem+json), where there are some."""

    def as_text(self) -> str:
        """For people."""
        sentences = (self.message.strip(), self.next_step.strip())
        return "Error: " + " ".join(_ended(sentence) for sentence in sentences if sentence)

    def as_json(self) -> dict[str, Any]:
        """For programs: the API's problem where there is one, the exit code always."""
        own = {"code": self.code, "detail": self.message, "exit_code": int(self.exit_code)}
        if self.next_step:
            own["next_step"] = self.next_step
        return {**self.problem, **own}


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def usage_error(message: str, next_step: str = "") -> CliError:
    return CliError(Exit.USAGE, message, next_step)


def local_error(message: str, next_step: str = "") -> CliError:
    return CliError(Exit.LOCAL, message, next_step)
