"""Terminal output: sanitized text, colours where supported, JSON unchanged."""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

# C0 and C1 controls and bidirectional overrides: a user-chosen name must not control the terminal.
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "?")
_CONTROLS_BUT_NEWLINE = {code: sign for code, sign in _CONTROLS.items() if code != 0x0A}
_NARROWEST = 12
_CONTINUATION_INDENT = "    "
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


def configure_streams() -> None:
    """Print a question mark for characters that the locale cannot encode, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def clean(text: object) -> str:
    """The text without control characters, on one line."""
    return str(text).translate(_CONTROLS)


def write_line(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def write_note(text: str) -> None:
    """Write to standard error. Flushes standard output first, if possible, to keep the order."""
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.write(text.translate(_CONTROLS_BUT_NEWLINE) + "\n")
    sys.stderr.flush()


def write_json(raw: bytes) -> None:
    """The API's response, byte for byte, with a final newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw.rstrip(b"\n") + b"\n")
    sys.stdout.flush()


def stdout_is_terminal() -> bool:
    """Whether standard output is a terminal with cursor control."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def stderr_is_terminal() -> bool:
    """Whether standard error is a terminal with cursor control."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def terminal_columns(stream: TextIO | None = None) -> int:
    """Of standard output, unless another stream is given."""
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def can_ask() -> bool:
    """Whether a person can answer questions: stdin and stdout are terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def wants_colour() -> bool:
    return stdout_is_terminal() and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str | None) -> str:
    """For standard output."""
    return _painted(text, colour) if colour is not None and wants_colour() else text


def _painted(text: str, colour: str) -> str:
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def write_error(label: str, message: str, hint: str) -> None:
    """To standard error. On a terminal broken between words, with the hint on its own lines; otherwise one line."""
    if not stderr_is_terminal():
        write_note(" ".join(part for part in (label, message, hint) if part))
        return
    with suppress(OSError):
        sys.stdout.flush()
    columns = max(20, terminal_columns(sys.stderr))
    first, *others = wrap(clean(f"{label} {message}".lstrip()), columns) or [""]
    hints = wrap(clean(hint), columns)
    if not os.environ.get("NO_COLOR"):
        first = first.replace(label, _painted(label, "red"), 1) if label else first
        hints = [_painted(line, "dim") for line in hints]
    sys.stderr.write("".join(f"{line}\n" for line in (first, *others, *hints)))
    sys.stderr.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[str | None] = ()) -> str:
    """Columns of plain text, two spaces apart; `colours` paints each row's second column.

    On a terminal nothing is cut: what does not fit continues below its row. Otherwise lines have full length.
    """
    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(_width(row[i]) for row in (header, *cleaned)) for i in range(len(header))]
    shown = len(header)
    below: list[list[str]] = [[] for _ in cleaned]
    if stdout_is_terminal():
        shown = _fitting_columns(widths, terminal_columns())
        widths = widths[:shown]
        if shown == len(header):
            widths[-1] = min(widths[-1], terminal_columns() - sum(widths[:-1]) - 2 * (shown - 1))
        below = [_move_below(header, row, shown, widths[-1]) for row in cleaned]
    lines = [paint(_align(header[:shown], widths), "bold")]
    for index, row in enumerate(cleaned):
        cells = [_pad(cell, width) for cell, width in zip(row[:shown], widths, strict=True)]
        if colours and shown > 1:
            cells[1] = paint(cells[1], colours[index])
        lines += ["  ".join(cells).rstrip(), *(_CONTINUATION_INDENT + line for line in below[index])]
    return "\n".join(lines)


def _fitting_columns(widths: Sequence[int], available: int) -> int:
    """How many columns stand side by side. The last one, which is free text, may be narrower than its text."""
    least = [*widths[:-1], min(widths[-1], _NARROWEST)]
    shown = len(least)
    while shown > 1 and sum(least[:shown]) + 2 * (shown - 1) > available:
        shown -= 1
    return shown


def _move_below(header: Sequence[str], row: list[str], shown: int, last_width: int) -> list[str]:
    """Shorten the row to what fits; the lines below it."""
    width = terminal_columns() - len(_CONTINUATION_INDENT)
    if shown == len(header):
        row[-1], rest = split(row[-1], last_width)
        return wrap(rest, width)
    labelled = [f"{name.lower()}: {cell}" for name, cell in zip(header[shown:-1], row[shown:-1], strict=True)]
    return [line for text in ("; ".join(labelled), row[-1]) for line in wrap(text, width)]


def split(text: str, width: int) -> tuple[str, str]:
    """Split into the part that fits `width` columns, broken at punctuation, and the rest."""
    if _width(text) <= width:
        return text, ""
    breaks = [match.end() for match in re.finditer(r"[,;] | (?=\()", text) if _width(text[: match.end()]) <= width]
    at = breaks[-1] if breaks else 0
    return text[:at].rstrip(" ,;"), text[at:]


def indent_below_label(label: str, text: str, indent: int) -> str:
    """`text` after its label: wrapped on a terminal, with continuation lines indented; otherwise one line."""
    columns = terminal_columns()
    if not sys.stdout.isatty() or _width(label + text) <= columns:
        return label + text
    first, *others = wrap(text, columns - indent, columns - _width(label)) or [""]
    return "\n".join([label + first, *(" " * indent + line for line in others)])


def wrap(text: str, width: int, first_width: int | None = None) -> list[str]:
    """Break between words. A word longer than a line gets its own line."""
    lines: list[str] = []
    limit = width if first_width is None else first_width
    for word in text.split():
        if lines and _width(lines[-1]) + 1 + _width(word) <= limit:
            lines[-1] += f" {word}"
        else:
            limit = width if lines else limit
            lines.append(word)
    return lines


def cut(text: str, width: int) -> str:
    """The longest prefix that fits `width` columns."""
    if text.isascii():
        return text[:width]
    while _width(text) > width:
        text = text[:-1]
    return text


def _align(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_pad(cell, width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _pad(cell: str, width: int) -> str:
    return cell + " " * max(0, width - _width(cell))


def _width(text: str) -> int:
    """Terminal columns."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)
