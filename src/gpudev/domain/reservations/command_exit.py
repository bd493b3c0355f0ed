"""Exit of a detached command, which ends its reservation: the files that record it, and its summary.

The files are written inside the dev server by its user: treat them as untrusted.
"""

from dataclasses import dataclass

from gpudev.domain.untrusted_json import parse_untrusted_json

RUN_FOLDER = ".gpu-dev-run"
"""In the dev server's home. It contains the following files."""
OUTPUT_FILE = "output"
PID_FILE = "pid"
EXIT_FILE = "exit"
"""Written when the command exits by itself."""
RESERVATION_FILE = "ends"
"""The reservation that ends with the command: a disk may carry files of earlier ones. If absent, nothing ends."""

_MAX_LINES = 12
_MAX_LINE_LENGTH = 300
_MAX_TOTAL_LENGTH = 1500
_MAX_EXIT_CODE = 255


@dataclass(frozen=True, slots=True)
class CommandExit:
    exit_code: int | None
    """None: it was killed from outside."""
    last_lines: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        how = "was killed from outside" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        return f"the command {how}"

    @property
    def message(self) -> str:
        """The summary, followed by the last lines."""
        lines = ("Last lines:", *self.last_lines) if self.last_lines else ()
        return "\n".join((self.summary, *lines))


def parse_command_exit(text: str | bytes) -> CommandExit | None:
    """None: not a valid report."""
    try:
        fields = parse_untrusted_json(text)
        code, last = fields["exit_code"], fields["last"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(last, str) or isinstance(code, bool) or not (code is None or isinstance(code, int)):
        return None
    if code is not None and not 0 <= code <= _MAX_EXIT_CODE:
        return None
    return CommandExit(code, clean_last_lines(last))


def clean_last_lines(written: str) -> tuple[str, ...]:
    """As a terminal would show them, without control characters. Of an overwritten progress bar only the last state is
    kept."""
    shown = []
    for line in written.split("\n"):
        last = line.rstrip("\r").rpartition("\r")[2]
        shown.append("".join(letter for letter in last if letter.isprintable()).rstrip()[:_MAX_LINE_LENGTH])
    kept = [line for line in shown if line][-_MAX_LINES:]
    while sum(map(len, kept)) > _MAX_TOTAL_LENGTH:
        kept.pop(0)
    return tuple(kept)
