"""The end of a command that was let go on a dev server, for which the dev server was reserved: what its own program
tells of it, and what people are told. Where those who begin such a command and those who watch it meet is named here.

Whoever has the dev server may say whatever they like: it is read as a stranger's text.
"""

import json
from dataclasses import dataclass

FOLDER = ".gpu-dev-run"
"""In the home there; what is in it follows."""
OUTPUT = "output"
PROCESS = "pid"
EXIT = "exit"
"""Written when it has ended by itself."""
ENDS = "ends"
"""Which reservation ends with it: a home may be a disk that has seen others. Without it the reservation stays."""

_MOST_LINES = 12
_LONGEST_LINE = 300
_LONGEST = 1500
_LARGEST_CODE = 255


@dataclass(frozen=True, slots=True)
class RunEnd:
    exit_code: int | None
    """None: it was ended from outside, so that it has none."""
    last_lines: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        how = "was ended from outside" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        return f"its command {how}"

    @property
    def words(self) -> str:
        """That, and below it what it wrote last."""
        lines = ("Its last lines:", *self.last_lines) if self.last_lines else ()
        return "\n".join((self.sentence, *lines))


def parse_run_end(told: str | bytes) -> RunEnd | None:
    """None: it tells of no such end."""
    try:
        fields = json.loads(told)
        code, last = fields["exit_code"], fields["last"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(last, str) or isinstance(code, bool) or not (code is None or isinstance(code, int)):
        return None
    if code is not None and not 0 <= code <= _LARGEST_CODE:
        return None
    return RunEnd(code, last_lines(last))


def last_lines(written: str) -> tuple[str, ...]:
    """As a terminal would show them, with nothing in them that a terminal would obey. What a progress bar has written
    over itself is what it wrote last."""
    shown = []
    for line in written.split("\n"):
        last = line.rstrip("\r").rpartition("\r")[2]
        shown.append("".join(letter for letter in last if letter.isprintable()).rstrip()[:_LONGEST_LINE])
    kept = [line for line in shown if line][-_MOST_LINES:]
    while sum(map(len, kept)) > _LONGEST:
        kept.pop(0)
    return tuple(kept)
